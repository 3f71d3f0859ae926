//! Queries to servers that answer well, badly, late and not at all.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use prometheus_api::{
    Fault, Sample,
    answer::Moment,
    client::{Connections, Limits, Server as Asked, Tenant, ask},
    promql::{Query, Scope, Target},
    secret::{Authorities, Token},
    url::ServerUrl,
};
use scripted_server::{SOON, Script, Server, closed_port, in_time};

const VALUE: &str = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1700000000,"12"]}]}}"#;

fn moment() -> Moment {
    let now = Timestamp::from_second(1_700_000_001).unwrap();
    Moment { now, wall: now }
}

fn query() -> Query {
    Query::parse("sum(a)", Target { namespace: "demo", name: "llm" }, Scope::Namespace).unwrap()
}

pub(crate) fn asked(url: &str) -> Asked {
    Asked { url: ServerUrl::parse(url).unwrap(), token: None, tenant: None, user_agent: "test/1" }
}

fn limits() -> Limits {
    // Far more than loopback needs; tests of deadlines have their own.
    Limits { deadline: Duration::from_secs(20), bytes: 4_096, ..Limits::NORMAL }
}

async fn polled(server: &Asked, limits: Limits) -> Result<Sample, Fault> {
    let connections = Connections::new(&Authorities::System).unwrap();
    number(&connections, server, limits).await
}

pub(crate) async fn number(
    connections: &Connections,
    server: &Asked,
    limits: Limits,
) -> Result<Sample, Fault> {
    ask(connections, server, &query(), None, limits).await?.number(limits, moment())
}

/// What a server that follows this script gives, and its URL.
async fn given(script: Script, limits: Limits) -> (Result<Sample, Fault>, String) {
    let server = Server::start(script).await;
    let url = format!("http://{}", server.address);
    (polled(&asked(&url), limits).await, url)
}

#[tokio::test]
async fn a_query_is_sent_as_a_form_and_its_value_is_a_sample() {
    let server = Server::start(Script::json(VALUE)).await;
    let asked = Asked {
        token: Some(Token::new("demo/prom", b"s3cret").unwrap()),
        tenant: Tenant::new("team-a"),
        ..asked(&format!("http://{}/prefix", server.address))
    };
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    assert_eq!(polled(&asked, limits()).await, Ok(Sample { value: 12.0, at, caution: None }));
    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("post /prefix/api/v1/query http/1.1"), "{head}");
    for header in [
        "authorization: bearer s3cret",
        "x-scope-orgid: team-a",
        "content-type: application/x-www-form-urlencoded",
    ] {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert_eq!(body, "query=sum%28a%7Bnamespace%3D%22demo%22%7D%29&timeout=20000ms");
}

#[tokio::test]
async fn without_token_and_tenant_neither_is_sent() {
    let server = Server::start(Script::json(VALUE)).await;
    polled(&asked(&format!("http://{}", server.address)), limits()).await.unwrap();
    let request = server.requests().concat();
    assert!(!request.contains("authorization") && !request.contains("x-scope-orgid"), "{request}");
}

#[tokio::test]
async fn one_connection_serves_several_queries() {
    let keeping = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{VALUE}", VALUE.len());
    let server = Server::start(Script::Stalled(keeping.into_bytes())).await;
    let connections = Connections::new(&Authorities::System).unwrap();
    let asked = asked(&format!("http://{}", server.address));
    number(&connections, &asked, limits()).await.unwrap();
    // The script answers one request of a connection, so a second one on it is not answered.
    let brief = Limits { deadline: SOON, ..limits() };
    let second = number(&connections, &asked, brief).await;
    assert!(matches!(second, Err(Fault::Slow { .. })), "{second:?}");
    assert_eq!(server.requests().len(), 1, "no second connection");
    // A connection that was given up is not used again.
    assert!(number(&connections, &asked, limits()).await.is_ok());
}

#[tokio::test]
async fn a_query_of_an_earlier_time_gets_its_series() {
    let server = Server::start(Script::json(VALUE)).await;
    let asked = asked(&format!("http://{}", server.address));
    let connections = Connections::new(&Authorities::System).unwrap();
    let answered = ask(&connections, &asked, &query(), Some(1_699_999_970), limits()).await.unwrap();
    assert_eq!(answered.counters(limits(), None).unwrap().into_values().collect::<Vec<f64>>(), [12.0]);
    let now = moment();
    let late = Moment {
        now: now.now + SignedDuration::from_hours(1),
        wall: now.wall + SignedDuration::from_hours(1),
    };
    assert!(answered.counters(limits(), Some(now)).is_ok());
    assert!(matches!(answered.counters(limits(), Some(late)), Err(Fault::Stale { .. })), "of a cache");
    let requests = server.requests();
    assert!(requests[0].ends_with("&time=1699999970"), "{requests:?}");
    assert!(requests[0].contains("user-agent: test/1"), "{requests:?}");
}

#[tokio::test]
async fn a_late_head_or_body_is_slow() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n";
    for begun in ["", "HTTP/1.1 200", head, &format!("{head}{VALUE}")] {
        let brief = Limits { deadline: SOON, ..limits() };
        let (polled, url) = in_time(given(Script::Stalled(begun.into()), brief)).await;
        assert_eq!(polled, Err(Fault::Slow { server: url, limit: SOON }), "{begun}");
    }
}

#[tokio::test]
async fn a_body_without_end_is_given_up() {
    for head in [
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        let (polled, url) = given(Script::Endless(head.into()), limits()).await;
        assert_eq!(polled, Err(Fault::TooLarge { server: url, limit: 4_096 }), "{head}");
    }
}

#[tokio::test]
async fn a_head_without_end_or_larger_than_any_that_a_server_needs_is_given_up() {
    let large = format!(
        "HTTP/1.1 200 OK\r\nx: {}\r\ncontent-type: application/json\r\n\r\n{VALUE}",
        "x".repeat(32 << 10)
    );
    for script in [Script::Endless(b"HTTP/1.1 200 OK\r\nx: ".to_vec()), Script::Bytes(large.into())] {
        let (polled, server) = given(script, limits()).await;
        assert_eq!(polled, Err(Fault::HeadTooLarge { server, limit: 16 << 10 }));
    }
}

#[tokio::test]
async fn redirects_are_named_and_not_followed() {
    let elsewhere = Server::start(Script::json(VALUE)).await;
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let to = format!("http://{}/login?session=secret", elsewhere.address);
        let answer = format!("HTTP/1.1 {status}\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n");
        let (polled, url) = given(Script::Bytes(answer.into_bytes()), limits()).await;
        assert_eq!(polled, Err(Fault::Redirected { server: url, to: "http://127.0.0.1".into() }), "{status}");
    }
    assert_eq!(elsewhere.requests(), [""; 0]);
}

#[tokio::test]
async fn a_login_page_is_named_as_such() {
    let (polled, url) = given(Script::answer("200 OK", "text/html", "<html>Log in</html>"), limits()).await;
    let fault = polled.unwrap_err();
    assert!(
        matches!(&fault, Fault::WrongContent { server, content, .. } if *server == url && content == "text/html")
    );
    assert!(fault.to_string().contains("a login page"), "{fault}");
}

#[tokio::test]
async fn a_refused_query_has_the_words_of_the_server_in_one_line() {
    let body =
        r#"{"status":"error","errorType":"bad_data","error":"parse error:\n\u001b[31munexpected s3cret"}"#;
    let server = Server::start(Script::answer("400 Bad Request", "application/json", body)).await;
    let asked = Asked {
        token: Some(Token::new("demo/prom", b"s3cret").unwrap()),
        ..asked(&format!("http://{}", server.address))
    };
    let why = "parse error: unexpected (redacted)".to_owned();
    let refused = Fault::Rejected { server: asked.url.to_string(), status: 400, why };
    assert_eq!(polled(&asked, limits()).await, Err(refused));
}

#[tokio::test]
async fn access_that_is_refused_names_the_secret_or_that_there_is_none() {
    for status in [401, 403] {
        let server = Server::start(Script::answer(&format!("{status} No"), "text/html", "<html>")).await;
        let url = format!("http://{}", server.address);
        let without = polled(&asked(&url), limits()).await;
        assert_eq!(without, Err(Fault::Unauthorized { server: url.clone(), status, secret: None }));
        assert!(without.unwrap_err().to_string().contains("secretName"));
        let with = Asked { token: Some(Token::new("demo/prom", b"old").unwrap()), ..asked(&url) };
        let fault = polled(&with, limits()).await.unwrap_err();
        assert_eq!(fault, Fault::Unauthorized { server: url, status, secret: Some("demo/prom".into()) });
    }
}

#[tokio::test]
async fn failures_of_the_server_are_apart_from_refusals() {
    let timeout =
        r#"{"status":"error","errorType":"timeout","error":"query timed out in expression evaluation"}"#;
    for (status, body, why) in [
        (500, "oops", "no reason given"),
        (503, timeout, "query timed out in expression evaluation"),
        (502, "<html>Bad Gateway</html>", "no reason given"),
        (429, "", "no reason given"),
    ] {
        let (polled, url) =
            given(Script::answer(&format!("{status} No"), "text/plain", body), limits()).await;
        assert_eq!(polled, Err(Fault::Failed { server: url, status, why: why.into() }));
    }
    for status in [404, 405, 422] {
        let (polled, _) = given(Script::answer(&format!("{status} No"), "text/plain", ""), limits()).await;
        assert!(
            matches!(polled, Err(Fault::Rejected { status: found, .. }) if found == status),
            "{polled:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let url = format!("http://{}", closed_port().await);
    let Err(Fault::Unreachable { why, .. }) = polled(&asked(&url), limits()).await else { panic!() };
    assert!(why.contains("refused"), "{why}");
    let unknown = polled(&asked("http://prometheus.invalid"), limits()).await;
    assert!(matches!(unknown, Err(Fault::Unreachable { .. } | Fault::Slow { .. })), "{unknown:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_or_no_http_is_unreachable() {
    for bytes in ["", "SSH-2.0-OpenSSH_9.6\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"] {
        let (polled, _) = given(Script::Bytes(bytes.into()), limits()).await;
        assert!(matches!(polled, Err(Fault::Unreachable { .. })), "{bytes}: {polled:?}");
    }
}

#[tokio::test]
async fn nothing_secret_is_in_debug() {
    let asked = Asked { token: Some(Token::new("demo/prom", b"s3cret").unwrap()), ..asked("http://a") };
    assert!(!format!("{asked:?}").contains("s3cret"));
}
