//! Who may read a model, and where the token goes.

use std::{io::Read as _, sync::mpsc, thread};

use api::loader::ExitCode;
use hub_server::{Access, Break, Model, Side};

use super::{HF, Hub, ID, MS, TOKEN, large, small};
use crate::{
    program::Ended,
    proxy::COMES_WITHIN,
    scene::{MIB, files, noise},
};

fn hub(access: Access) -> (Hub, Vec<u8>) {
    let weights = noise(3, 20 * MIB);
    let model = Model::new(ID, [small("config.json", b"{}"), large("model.safetensors", &weights)]);
    (Hub::with(model.with_access(access)), weights)
}

#[track_caller]
fn shows_no_token(ended: &Ended) {
    assert!(!ended.output.contains(TOKEN) && !ended.reported.contains(TOKEN), "{}", ended.output);
}

#[test]
fn the_token_opens_a_private_and_a_gated_model_and_reaches_no_other_host() {
    for source in [HF, MS] {
        for access in [Access::Gated(TOKEN.to_owned()), Access::Private(TOKEN.to_owned())] {
            let (hub, weights) = hub(access);
            let ended = hub.pull(source).env("TRANSFER_HUB_TOKEN", TOKEN).run();
            ended.succeeded();
            shows_no_token(&ended);
            assert_eq!(hub.pulled(), files([("config.json", b"{}"), ("model.safetensors", &weights)]));
            let requests = hub.server.take_requests();
            let (to_hub, to_network): (Vec<_>, Vec<_>) =
                requests.iter().partition(|request| request.side == Side::Hub);
            assert!(
                to_network.len() >= 2
                    && to_hub.iter().all(|request| request.token().as_deref() == Some(TOKEN))
            );
            for request in to_network {
                let headers = format!("{:?}", request.headers);
                assert!(!headers.contains(TOKEN) && !request.query.contains(TOKEN), "{headers}");
            }
        }
    }
}

#[test]
fn a_redirect_to_another_port_of_the_hub_gets_no_token() {
    let (hub, _) = hub(Access::Public);
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let location = format!("http://{}/a", elsewhere.local_addr().unwrap());
    hub.server.rule(move |request| {
        match request.path.ends_with("/resolve/main/config.json") || request.is_file() {
            true => Break::Status(302, format!("location: {location}\r\n"), String::new()),
            false => Break::Nothing,
        }
    });
    let pull = hub.pull(HF).env("TRANSFER_HUB_TOKEN", TOKEN).start();
    let (asked, is_asked) = mpsc::channel();
    thread::spawn(move || {
        let (mut client, _) = elsewhere.accept().unwrap();
        let mut head = vec![0; 4096];
        let length = client.read(&mut head).unwrap();
        // The test may have ended.
        let _ = asked.send(String::from_utf8_lossy(&head[..length]).into_owned());
    });
    let head = is_asked.recv_timeout(COMES_WITHIN).unwrap();
    assert!(head.starts_with("GET /a") && !head.contains(TOKEN), "{head}");
    drop(pull);
}

#[test]
fn an_unknown_name_no_access_and_a_hub_that_is_away_are_three_reasons() {
    let (public, _) = hub(Access::Public);
    let (gated, _) = hub(Access::Gated(TOKEN.to_owned()));
    for (scheme, page) in [("hf", "/"), ("ms", "/models/")] {
        let unknown = public.pull(&format!("{scheme}://qwen/typo")).run();
        unknown.failed(ExitCode::SourceNotFound, "there is no such model: correct its name");
        assert!(unknown.reported.contains("spec.modelStore.secretName"), "{}", unknown.reported);
        let token = public.pull(&format!("{scheme}://qwen/typo")).env("TRANSFER_HUB_TOKEN", TOKEN).run();
        token.failed(ExitCode::SourceNotFound, "there is no such model");

        let page = format!("visit {}{page}{ID}", gated.server.endpoint());
        let closed = gated.pull(&format!("{scheme}://{ID}")).run();
        closed.failed(ExitCode::SourceUnauthorized, &page);
        assert!(closed.reported.contains("name a Secret with the key token"), "{}", closed.reported);
        let wrong = gated.pull(&format!("{scheme}://{ID}")).env("TRANSFER_HUB_TOKEN", "hf_wrong").run();
        wrong.failed(ExitCode::SourceUnauthorized, &page);
        assert!(!wrong.output.contains("hf_wrong"), "{}", wrong.output);

        let away = public.pull(&format!("{scheme}://{ID}"));
        let away =
            away.env("TRANSFER_HUB_ENDPOINT", "http://127.0.0.1:1").env("TRANSFER_PATIENCE_SECONDS", "1");
        away.run().failed(ExitCode::SourceUnreachable, "at http://127.0.0.1:1 has not answered");
    }
}

/// Hugging Face does not tell anonymous users whether a model exists.
#[test]
fn without_a_token_401_is_an_unknown_name_and_with_one_a_wrong_token() {
    let (hub, _) = hub(Access::Public);
    hub.server.rule(|_| Break::Status(401, String::new(), String::new()));
    hub.pull(HF).run().failed(ExitCode::SourceNotFound, "if it is private, name a Secret with the key token");
    let with = hub.pull(HF).env("TRANSFER_HUB_TOKEN", TOKEN).run();
    with.failed(ExitCode::SourceUnauthorized, "refuses the token (401)");
    shows_no_token(&with);
}

#[test]
fn an_unknown_revision_is_named() {
    let (hub, _) = hub(Access::Public);
    for source in [HF, MS] {
        let ended = hub.pull(&format!("{source}@v9")).run();
        ended.failed(
            ExitCode::SourceNotFound,
            if source == HF { "RevisionNotFound" } else { "or no revision v9" },
        );
    }
}

#[test]
fn a_hub_that_redirects_in_a_circle_or_to_another_protocol_is_not_followed() {
    let (hub, _) = hub(Access::Public);
    hub.server.rule(|request| match request.is_file() {
        true => Break::Status(302, format!("location: {}\r\n", request.path), String::new()),
        false => Break::Nothing,
    });
    hub.pull(HF).run().failed(ExitCode::SourceUnreachable, "more than 5 times");
    hub.server.rule(|request| match request.is_file() {
        true => Break::Status(302, "location: ftp://elsewhere/secret\r\n".to_owned(), String::new()),
        false => Break::Nothing,
    });
    let ended = hub.pull(HF).run();
    ended.failed(ExitCode::SourceUnreachable, "redirects to ftp://elsewhere (302)");
    assert!(!ended.output.contains("secret"), "{}", ended.output);
}

#[test]
fn an_endpoint_with_a_password_is_refused_and_not_repeated() {
    let (hub, _) = hub(Access::Public);
    let ended = hub.pull(HF).env("TRANSFER_HUB_ENDPOINT", "https://me:password1@hub").run();
    assert_eq!(ended.code, Some(ExitCode::Usage.code()));
    assert!(!ended.output.contains("password1"), "{}", ended.output);
}
