//! Every call ends in time and is sent once.

use std::{sync::atomic::Ordering, time::Duration};

use futures::future::join;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams},
};
use runtime::{
    client::{self, Deadlines, LeaderGuard, WriteGuard},
    clock::Clock,
    read::logs::{Logs, Tail},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::Instant,
};

use crate::{
    fake::{Answer, On, ScriptedApi, Verb},
    given::{client, client_of, client_within, config, config_map, config_of, metrics, within_patience},
};

/// Every verb, as a controller would send it.
async fn call(client: &Client, verb: Verb) -> Result<(), kube::Error> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), "demo");
    match verb {
        Verb::List => api.list(&ListParams::default()).await.map(drop),
        Verb::Watch => api.watch(&WatchParams::default(), "1").await.map(drop),
        Verb::Get => api.get("a").await.map(drop),
        Verb::Create => api.create(&PostParams::default(), &config_map("a")).await.map(drop),
        Verb::Update => api.replace("a", &PostParams::default(), &config_map("a")).await.map(drop),
        Verb::Patch => {
            api.patch("a", &PatchParams::apply("test"), &Patch::Apply(config_map("a"))).await.map(drop)
        }
        Verb::Delete => api.delete("a", &DeleteParams::default()).await.map(drop),
    }
}

fn on(verb: Verb) -> On {
    verb.of("configmaps")
}

const READS: [Verb; 2] = [Verb::Get, Verb::List];
const WRITES: [Verb; 4] = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];

#[tokio::test]
async fn a_connection_without_calls_is_closed() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap();
    let deadlines = Deadlines { unused: Duration::from_millis(50), ..Deadlines::default() };
    let client = client_of(config_of(&format!("http://{address}")), deadlines);
    let answering = async {
        let (mut connection, _) = server.accept().await.unwrap();
        let mut read = [0; 4096];
        assert!(connection.read(&mut read).await.unwrap() > 0);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\n{\"metadata\":{\"name\":\"a\"}}";
        connection.write_all(answer).await.unwrap();
        connection.read(&mut read).await.unwrap()
    };
    let (read, called) =
        within_patience("the end of the connection", join(answering, call(&client, Verb::Get))).await;
    called.unwrap();
    assert_eq!(read, 0, "the end of the stream");
}

#[tokio::test]
async fn a_proxy_is_refused_and_not_left_out() {
    let mut config = config_of("http://127.0.0.1:1");
    config.proxy_url = Some("http://127.0.0.1:2".parse().unwrap());
    let refused =
        client::build(&config, Deadlines::default(), WriteGuard::Always, metrics(), Clock::default());
    assert!(matches!(refused, Err(kube::Error::ProxyProtocolDisabled { .. })));
}

#[tokio::test]
async fn a_call_that_is_never_answered_ends_at_its_deadline() {
    let limit = Duration::from_millis(500);
    let deadlines =
        Deadlines { read: limit, write: limit, list: limit, watch_start: limit, ..Deadlines::default() };
    let verbs = READS.into_iter().chain(WRITES).chain([Verb::Watch]);
    for (verb, answer) in
        verbs.flat_map(|verb| [Answer::NoHeaders, Answer::HalfABody(500)].map(|answer| (verb, answer)))
    {
        let fake = ScriptedApi::start().await;
        fake.always(on(verb), answer);
        let client = client_within(&fake, deadlines);
        let sent = Instant::now();
        let error = within_patience("the end of the call", call(&client, verb)).await.unwrap_err();
        assert!(sent.elapsed() >= limit);
        assert!(error_chain(&error).contains("was not answered within 0.5 s"), "{verb:?}: {error:?}");
        assert_eq!(fake.until_called(on(verb), 1).await.len(), 1);
    }
}

#[tokio::test]
async fn a_good_answer_whose_body_hangs_ends_at_its_deadline_too() {
    let limit = Duration::from_millis(500);
    let deadlines = Deadlines { read: limit, write: limit, list: limit, ..Deadlines::default() };
    for verb in READS.into_iter().chain(WRITES) {
        let fake = ScriptedApi::start().await;
        fake.always(on(verb), Answer::HalfABody(200));
        let client = client_within(&fake, deadlines);
        let error = within_patience("the end of the call", call(&client, verb)).await.unwrap_err();
        assert!(error_chain(&error).contains("was not answered within 0.5 s"), "{verb:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_refused_is_sent_once() {
    for code in [429, 503, 504] {
        let fake = ScriptedApi::start().await;
        let client = client(&fake);
        for verb in READS.into_iter().chain(WRITES).chain([Verb::Watch]) {
            fake.always(on(verb), Answer::busy(code, 1));
            let error = within_patience("the end of the call", call(&client, verb)).await.unwrap_err();
            assert!(matches!(&error, kube::Error::Api(status) if status.code == code), "{verb:?}: {error:?}");
            assert_eq!(fake.calls(on(verb)).len(), 1, "{verb:?} {code}");
        }
    }
}

#[tokio::test]
async fn an_error_that_is_no_status_keeps_its_code() {
    let fake = ScriptedApi::start().await;
    let client = client(&fake);
    for (code, body) in [(404, "{}"), (410, "gone"), (502, "<html>bad gateway</html>"), (500, ""), (503, "7")]
    {
        fake.next(on(Verb::Get), [Answer::text(code, body)]);
        let error = call(&client, Verb::Get).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == code && status.message == body),
            "{error:?}"
        );
    }
}

/// A kubelet in the wrong hands does not keep to the bytes that it is asked for.
#[tokio::test]
async fn a_log_without_an_end_is_given_up_as_soon_as_it_is_too_long() {
    let (fake, taken) = (ScriptedApi::start().await, std::sync::Arc::default());
    fake.always(Verb::Get.of("pods"), Answer::Endless(std::sync::Arc::clone(&taken)));
    let sent = Instant::now();
    let read = Logs::new(client(&fake)).end_of("demo", "chat-0", "engine", true).await;
    assert_eq!(read, Tail::Unreadable);
    assert!(sent.elapsed() < Duration::from_secs(2), "it was read until the deadline");
    // What is on its way in buffers is more than what is kept.
    assert!(taken.load(Ordering::Relaxed) < 16 << 20, "{taken:?}");
}

#[tokio::test]
async fn a_log_is_read_and_one_that_may_not_be_read_is_told_from_one_that_cannot() {
    let fake = ScriptedApi::start().await;
    let whole = "x".repeat(256 << 10);
    fake.next(
        Verb::Get.of("pods"),
        [
            Answer::text(200, &whole),
            Answer::status(403, "Forbidden", "pods \"chat-0\" is forbidden: User \"x\" cannot get resource"),
            Answer::status(404, "NotFound", "not found"),
        ],
    );
    let logs = Logs::new(client(&fake));
    for expected in [Tail::Text(whole), Tail::Forbidden, Tail::Unreadable] {
        assert_eq!(logs.end_of("demo", "chat-0", "engine", true).await, expected);
    }
}

#[tokio::test]
async fn a_replica_that_does_not_lead_sends_no_write() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    let guard = WriteGuard::WhileLeading(LeaderGuard::default());
    let client =
        client::build(&config(&fake), Deadlines::default(), guard, metrics(), Clock::default()).unwrap();
    for verb in READS {
        call(&client, verb).await.unwrap();
    }
    for verb in WRITES {
        let error = call(&client, verb).await.unwrap_err();
        assert!(error_chain(&error).contains("this replica does not lead"), "{error:?}");
        assert!(fake.calls(on(verb)).is_empty(), "{verb:?} was sent");
    }
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}
