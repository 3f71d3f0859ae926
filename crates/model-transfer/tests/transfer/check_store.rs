//! Whether a store takes objects, before there is anything to push.

use api::loader::ExitCode;

use crate::{
    gateway::Gateway,
    program::Program,
    proxy::Break,
    scene::{Scene, files},
};

const NAME: &str = "--name=0a1b-2c3d";
const OBJECT: &str = "out/.model-transfer.check-0a1b-2c3d";

fn check(scene: &Scene) -> Program {
    Program::new(scene.proxy.address, ["check-store", "s3://models/out", NAME, "--fields=spec.output.upload"])
}

#[test]
fn a_store_that_takes_objects_has_none_left_after_a_check() {
    let scene = Scene::new();
    scene.gateway.put(OBJECT, b"of a check that was killed");
    scene.gateway.put("out/config.json", b"{}");
    check(&scene).run().succeeded();
    assert_eq!(scene.gateway.get(OBJECT), None);
    assert_eq!(scene.gateway.get("out/config.json").as_deref(), Some(b"{}".as_slice()));
    let written: Vec<String> = scene
        .proxy
        .take_requests()
        .into_iter()
        .filter(|request| request.method != "GET" && request.method != "HEAD")
        .map(|request| format!("{} {}", request.method, request.path))
        .collect();
    assert_eq!(written, [format!("PUT /models/{OBJECT}"), format!("DELETE /models/{OBJECT}")]);
}

#[test]
fn a_whole_bucket_can_be_checked() {
    let scene = Scene::new();
    Program::new(scene.proxy.address, ["check-store", "s3://models", NAME]).run().succeeded();
    assert_eq!(scene.gateway.get(".model-transfer.check-0a1b-2c3d"), None);
}

#[test]
fn a_store_that_refuses_names_the_fields_of_the_caller() {
    let scene = Scene::new();
    let ended = check(&scene).env("AWS_SECRET_ACCESS_KEY", "another").run();
    ended.failed(ExitCode::SourceUnauthorized, "correct the Secret of spec.output.upload.secretName");
    let anonymous = check(&scene).without_env("AWS_ACCESS_KEY_ID").without_env("AWS_SECRET_ACCESS_KEY").run();
    anonymous.failed(ExitCode::SourceUnauthorized, "name a Secret in spec.output.upload.secretName");
    let bucket = Program::new(scene.proxy.address, ["check-store", "s3://another/out", NAME]).run();
    bucket.failed(ExitCode::SourceNotFound, "there is no such bucket");
    for (rule, field) in [
        (Break::Status(301, "x-amz-bucket-region: eu-west-1\r\n"), "set spec.output.upload.region"),
        (Break::Status(307, "Location: http://elsewhere\r\n"), "correct spec.output.upload.endpoint"),
        (Break::Error(403, "SecondLevelDomainForbidden"), "set spec.output.upload.addressing"),
    ] {
        scene.proxy.rule(move |_| rule.clone());
        check(&scene).run().failed(ExitCode::SourceUnreachable, field);
    }
}

#[test]
fn an_authority_that_is_not_trusted_is_named_by_the_field_of_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start_signed(folder.path(), "127.0.0.1");
    let check = || {
        Program::new(gateway.address, ["check-store", "s3://models/out", NAME, "--fields=spec.output.upload"])
            .env("AWS_ENDPOINT_URL", &format!("https://{}", gateway.address))
            .env("TRANSFER_PATIENCE_SECONDS", "1")
    };
    check().run().failed(ExitCode::SourceUnreachable, "name it in spec.output.upload.caSecretName");
    let given = folder.path().join("cert.pem");
    check().arg(&format!("--ca-file={}", given.display())).run().succeeded();
}

#[test]
fn a_store_that_takes_objects_and_does_not_give_them_back_is_refused() {
    let scene = Scene::new();
    scene.proxy.rule(
        |request| {
            if request.is_object() { Break::Error(403, "AccessDenied") } else { Break::Nothing }
        },
    );
    check(&scene).run().failed(ExitCode::SourceUnauthorized, "403 AccessDenied");
    assert_eq!(scene.gateway.get(OBJECT), None, "it is deleted nevertheless");
}

#[test]
fn a_store_that_lets_nothing_be_deleted_is_no_fault_and_its_object_is_not_pulled() {
    let scene = Scene::new();
    scene.gateway.put("out/config.json", b"{}");
    scene.proxy.rule(|request| match request.method.as_str() {
        "DELETE" => Break::Error(403, "AccessDenied"),
        _ => Break::Nothing,
    });
    check(&scene).run().succeeded();
    assert!(scene.gateway.get(OBJECT).is_some());
    scene.pull_from("s3://models/out").run().succeeded();
    assert_eq!(scene.pulled(), files([("config.json", b"{}")]));
}

#[test]
fn a_name_is_no_path() {
    let scene = Scene::new();
    let ended = Program::new(scene.proxy.address, ["check-store", "s3://models/out", "--name=../x"]).run();
    assert_eq!(ended.code, Some(ExitCode::Usage.code()), "{}", ended.output);
}
