//! A watch survives every fault of an API server, and lists that lose objects.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use runtime::{
    client::Deadlines,
    watch::{Requirement, Scope, Timings, Watches},
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{Answer, Call, End, Gate, GeneratedApi, Object, On, PATIENCE, ScriptedApi, Verb},
    given::{
        Logs, Watched, client, client_of, client_within, config_map, config_of, metrics, one_try, timings,
        within_patience,
    },
};

fn lists() -> On {
    Verb::List.of("configmaps")
}

fn watches() -> On {
    Verb::Watch.of("configmaps")
}

const FAILURES: &str = "watch_failures_total{kind=\"ConfigMap\"}";

/// Each wait is at least twice the one before; a busy machine only makes waits longer.
fn assert_backoff_grows(calls: &[Call]) {
    let first = timings().first_backoff;
    for (number, pair) in calls.windows(2).enumerate() {
        let at_least = first * 2_u32.pow(u32::try_from(number).unwrap());
        let waited = pair[1].at - pair[0].at;
        assert!(waited >= at_least, "wait {number} was {waited:?}, not at least {at_least:?}");
    }
}

#[tokio::test]
async fn a_list_of_several_pages_is_complete_before_the_watch_begins() {
    const OBJECTS: usize = 2_345;
    let api = GeneratedApi::start(OBJECTS as u64).await.unwrap();
    let client = client_of(config_of(&api.url()), Deadlines::default());
    let mut watched = Watched::start(client, timings());
    within_patience("the list", watched.cache.synced()).await;
    assert_eq!(watched.cache.len(), OBJECTS);
    watched.next_changes(OBJECTS).await;
    api.add(&Object::marked("new")).await.unwrap();
    assert_eq!(watched.next_change().await, "+mark-new");
}

fn optional() -> Scope {
    Scope { requirement: Requirement::IfServed, ..Scope::default() }
}

fn not_served() -> Answer {
    Answer::text(404, "404 page not found")
}

#[tokio::test]
async fn an_optional_kind_that_is_not_served_has_no_objects_and_is_found_once_it_is_served() {
    let fake = ScriptedApi::start().await;
    fake.always(lists(), not_served());
    let mut watched = Watched::start_within(client(&fake), timings(), optional());
    within_patience("the sync", watched.cache.synced()).await;
    fake.until_called(lists(), 3).await;
    assert!(watched.cache.is_empty());
    assert!(watched.health.complaints(Duration::ZERO).is_empty());
    assert_eq!(watched.counted(FAILURES), 0);
    fake.put(&config_map("a"));
    fake.clear_script();
    assert_eq!(watched.next_change().await, "+a");
    // The kind is removed from the cluster, with its objects.
    fake.always(lists(), not_served());
    fake.always(watches(), not_served());
    fake.compact("configmaps");
    assert_eq!(watched.next_change().await, "-a");
}

#[tokio::test]
async fn an_optional_kind_that_nothing_needs_is_not_looked_for() {
    let fake = ScriptedApi::start().await;
    fake.always(lists(), not_served());
    let (is_wanted, (asked, mut times)) = (Arc::new(AtomicBool::new(false)), watch::channel(0));
    let wanted = {
        let is_wanted = Arc::clone(&is_wanted);
        Box::new(move || {
            asked.send_modify(|times| *times += 1);
            is_wanted.load(Ordering::SeqCst)
        })
    };
    let mut watched = Watched::start_if_wanted(client(&fake), timings(), optional(), wanted);
    within_patience("the sync", watched.cache.synced()).await;
    within_patience("the question", times.wait_for(|times| *times >= 3)).await.unwrap();
    assert_eq!(fake.calls(lists()).len(), 1);
    is_wanted.store(true, Ordering::SeqCst);
    fake.put(&config_map("a"));
    fake.clear_script();
    assert_eq!(watched.next_change().await, "+a");
}

#[tokio::test]
async fn an_optional_kind_that_may_not_be_listed_is_no_kind_without_objects() {
    let fake = ScriptedApi::start().await;
    for answer in [Answer::status(403, "Forbidden", "no"), Answer::status(503, "ServiceUnavailable", "later")]
    {
        fake.always(lists(), answer);
        let watched = Watched::start_within(client(&fake), one_try(), optional());
        fake.until_called(lists(), 1).await;
        within_patience("the failure", async {
            while watched.counted(FAILURES) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(!watched.health.complaints(Duration::ZERO).is_empty());
        fake.clear_script();
    }
}

#[tokio::test]
async fn a_kind_that_need_not_be_allowed_has_no_objects_until_it_is() {
    let fake = ScriptedApi::start().await;
    let forbidden = || Answer::status(403, "Forbidden", "no");
    fake.always(lists(), forbidden());
    let scope = Scope { requirement: Requirement::IfAllowed, ..Scope::default() };
    let mut watched = Watched::start_within(client(&fake), timings(), scope);
    within_patience("the sync", watched.cache.synced()).await;
    fake.until_called(lists(), 3).await;
    assert!(watched.health.complaints(Duration::ZERO).is_empty());
    assert_eq!(watched.counted(FAILURES), 0);
    fake.put(&config_map("a"));
    fake.clear_script();
    assert_eq!(watched.next_change().await, "+a");
    // The right is withdrawn.
    fake.always(lists(), forbidden());
    fake.always(watches(), forbidden());
    fake.compact("configmaps");
    assert_eq!(watched.next_change().await, "-a");
}

#[tokio::test]
async fn a_kind_that_is_required_and_not_served_fails() {
    let fake = ScriptedApi::start().await;
    fake.always(lists(), not_served());
    let watched = Watched::start(client(&fake), timings());
    fake.until_called(lists(), 3).await;
    assert!(!watched.health.complaints(Duration::ZERO).is_empty());
}

/// However the server says that a version is too old, the next try is a new list, and the tries become rarer.
async fn assert_lists_again(answer: Answer) {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    fake.always(watches(), answer);
    let mut watched = Watched::start(client(&fake), timings());
    let tries = fake.until_called(lists(), 6).await;
    assert_backoff_grows(&tries);
    let verbs = fake.verbs();
    for pair in verbs.chunks_exact(2) {
        assert_eq!(pair, ["List configmaps", "Watch configmaps"], "{verbs:?}");
    }
    assert_eq!(watched.next_change().await, "+a");
    fake.clear_script();
    fake.put(&config_map("b"));
    assert_eq!(watched.next_change().await, "+b", "it recovers by itself");
}

#[tokio::test]
async fn a_410_as_the_http_status_lists_again_ever_more_rarely() {
    assert_lists_again(Answer::gone()).await;
}

#[tokio::test]
async fn a_410_within_the_stream_lists_again_ever_more_rarely() {
    assert_lists_again(Answer::gone_in_stream()).await;
}

#[tokio::test]
async fn a_410_in_plain_text_lists_again_ever_more_rarely() {
    assert_lists_again(Answer::text(410, "Gone")).await;
}

#[tokio::test]
async fn a_410_whose_json_is_no_status_lists_again_ever_more_rarely() {
    assert_lists_again(Answer::text(410, r#"{"error": "gone"}"#)).await;
}

#[tokio::test]
async fn a_version_newer_than_a_restored_store_lists_again_ever_more_rarely() {
    let answer = Answer::status(504, "Timeout", "Too large resource version: 9000, current: 100");
    assert_lists_again(answer).await;
}

#[tokio::test]
async fn a_line_that_is_no_event_lists_again_ever_more_rarely() {
    let broken = Answer::Lines(vec!["<html>".into()], End::Silence);
    assert_lists_again(broken).await;
}

#[tokio::test]
async fn a_list_that_takes_long_does_not_reset_the_backoff() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::gone());
    // Every list, and every refusal, takes longer than this.
    let steady_after = Duration::from_nanos(1);
    let _watched = Watched::start(client(&fake), Timings { steady_after, ..timings() });
    assert_backoff_grows(&fake.until_called(lists(), 6).await);
}

#[tokio::test]
async fn a_500_with_a_pretty_printed_body_is_one_failure() {
    let fake = ScriptedApi::start().await;
    fake.next(watches(), [Answer::pretty(500, "InternalError", "etcdserver: leader changed")]);
    let mut watched = Watched::start(client(&fake), timings());
    let tries = fake.until_called(watches(), 2).await;
    assert_eq!(tries[0].query["resourceVersion"], tries[1].query["resourceVersion"], "it resumes");
    fake.put(&config_map("a"));
    assert_eq!(watched.next_change().await, "+a");
    assert_eq!(watched.counted(FAILURES), 1);
    assert_eq!(fake.calls(lists()).len(), 1);
}

#[tokio::test]
async fn a_500_that_stays_is_tried_ever_more_rarely() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::pretty(500, "InternalError", "etcdserver: leader changed"));
    let _watched = Watched::start(client(&fake), timings());
    assert_backoff_grows(&fake.until_called(watches(), 6).await);
    assert_eq!(fake.calls(lists()).len(), 1);
}

#[tokio::test]
async fn a_version_that_expired_in_an_outage_does_not_prolong_the_outage() {
    let fake = ScriptedApi::start().await;
    let outage = || Answer::pretty(500, "InternalError", "etcdserver: no leader");
    fake.next(watches(), [outage(), outage(), outage(), outage(), outage(), Answer::gone()]);
    let slow =
        Timings { first_backoff: Duration::from_millis(100), longest_backoff: 2 * PATIENCE, ..timings() };
    let _watched = Watched::start(client(&fake), slow);
    let lists = fake.until_called(lists(), 2).await;
    let tries = fake.until_called(watches(), 6).await;
    let (last_wait, wait_for_list) = (tries[5].at - tries[4].at, lists[1].at - tries[5].at);
    assert!(last_wait >= 16 * slow.first_backoff, "{last_wait:?}");
    assert!(wait_for_list < last_wait, "{wait_for_list:?}, not before {last_wait:?}");
}

#[tokio::test]
async fn versions_that_expire_between_failures_are_tried_ever_more_rarely() {
    let fake = ScriptedApi::start().await;
    let failure = || Answer::pretty(500, "InternalError", "etcdserver: no leader");
    fake.next(watches(), [failure(), Answer::gone(), failure(), Answer::gone(), failure(), Answer::gone()]);
    let _watched = Watched::start(client(&fake), timings());
    // Each list but the first follows one wait that has grown.
    let lists = fake.until_called(lists(), 4).await;
    for (number, pair) in lists.windows(2).enumerate() {
        let at_least = timings().first_backoff * 4_u32.pow(u32::try_from(number).unwrap());
        assert!(pair[1].at - pair[0].at >= at_least, "{number}");
    }
}

#[tokio::test]
async fn an_object_that_does_not_fit_is_skipped_in_a_list_and_named() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("good"));
    fake.put_json("configmaps", json!({"metadata": {"namespace": "demo", "name": "bad"}, "data": "no map"}));
    fake.put(&config_map("good-too"));
    let mut watched = Watched::start(client(&fake), timings());
    assert_eq!(watched.next_changes(2).await, ["+good", "+good-too"]);
    logs.until_logged(&["skipped", "demo/bad"]).await;
    fake.put(&config_map("later"));
    assert_eq!(watched.next_change().await, "+later");
    assert_eq!(fake.verbs(), ["List configmaps", "Watch configmaps"], "one list is enough");
    assert_eq!(watched.counted("watch_undecodable_objects_total{kind=\"ConfigMap\"}"), 1);
}

#[tokio::test]
async fn an_object_that_does_not_fit_is_skipped_in_a_watch_and_named() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    let mut watched = Watched::start(client(&fake), timings());
    assert_eq!(watched.next_change().await, "+a");
    fake.until_called(watches(), 1).await;
    fake.put_json(
        "configmaps",
        json!({"metadata": {"namespace": "demo", "name": "a", "uid": "uid-a"}, "data": "no map"}),
    );
    fake.put(&config_map("b"));
    assert_eq!(watched.next_change().await, "+b", "no change is reported for the malformed one");
    logs.until_logged(&["skipped", "demo/a"]).await;
    assert_eq!(watched.cache.len(), 2, "the last version that could be read is kept");
    assert_eq!(fake.verbs(), ["List configmaps", "Watch configmaps"], "the connection lives on");
    fake.remove("configmaps", "a");
    assert_eq!(watched.next_change().await, "-a", "its end is understood");
}

#[tokio::test]
async fn an_object_whose_metadata_does_not_fit_is_skipped_and_named() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.put_json(
        "configmaps",
        json!({"metadata": {"namespace": "demo", "name": "bad", "labels": {"a": 1}}}),
    );
    fake.put(&config_map("good"));
    let mut watched = Watched::start(client(&fake), timings());
    assert_eq!(watched.next_change().await, "+good");
    logs.until_logged(&["skipped", "demo/bad"]).await;
}

#[tokio::test]
async fn a_429_is_seen_at_the_first_answer() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::busy(429, 1));
    let watched = Watched::start(client(&fake), one_try());
    logs.until_logged(&["watch failed", "429"]).await;
    let complaints = watched.health.complaints(Duration::ZERO);
    assert!(complaints[0].contains("ConfigMap") && complaints[0].contains("429"), "{complaints:?}");
    assert_eq!(fake.calls(watches()).len(), 1, "nothing repeats it behind our back");
    assert_eq!(watched.counted(FAILURES), 1);
}

#[tokio::test]
async fn a_silent_watch_is_opened_again_after_the_limit() {
    let fake = ScriptedApi::start().await;
    fake.next(watches(), [Answer::silence()]);
    let silence = Duration::from_millis(200);
    let mut watched = Watched::start(client(&fake), Timings { silence, ..timings() });
    let tries = fake.until_called(watches(), 2).await;
    assert!(tries[1].at - tries[0].at >= silence);
    assert_eq!(tries[0].query["resourceVersion"], tries[1].query["resourceVersion"], "it resumes");
    assert_eq!(fake.calls(lists()).len(), 1);
    fake.put(&config_map("a"));
    assert_eq!(watched.next_change().await, "+a");
}

#[tokio::test]
async fn the_server_is_asked_to_end_each_watch_before_it_counts_as_silent() {
    let fake = ScriptedApi::start().await;
    let _watched = Watched::start(client(&fake), Timings::default());
    let tries = fake.until_called(watches(), 1).await;
    assert_eq!(tries[0].query["timeoutSeconds"], "60");
    assert!(Timings::default().silence > Duration::from_secs(60));
}

#[tokio::test]
async fn a_watch_that_the_server_ends_in_time_is_resumed_at_once_and_is_no_failure() {
    let fake = ScriptedApi::start().await;
    // The server counts whole seconds.
    let timings = Timings { server_timeout: Duration::from_secs(1), ..one_try() };
    let mut watched = Watched::start(client(&fake), timings);
    fake.until_called(watches(), 2).await;
    fake.put(&config_map("a"));
    assert_eq!(watched.next_change().await, "+a");
    assert_eq!(fake.calls(lists()).len(), 1);
    assert_eq!(watched.counted(FAILURES), 0);
}

#[tokio::test]
async fn a_watch_that_is_closed_at_once_is_tried_ever_more_rarely() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::closed_at_once());
    // Long enough that no stall of this machine makes "at once" look like a life.
    let timings = Timings {
        shortest_connection: Duration::from_secs(10),
        steady_after: Duration::from_secs(10),
        ..timings()
    };
    let watched = Watched::start(client(&fake), timings);
    assert_backoff_grows(&fake.until_called(watches(), 6).await);
    assert_eq!(fake.calls(lists()).len(), 1);
    let complaints = watched.health.complaints(Duration::ZERO);
    assert!(complaints[0].contains("closed the watch at once"), "{complaints:?}");
}

#[tokio::test]
async fn a_watch_without_headers_ends_at_its_deadline() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.next(watches(), [Answer::NoHeaders, Answer::HalfABody(500)]);
    let watch_start = Duration::from_millis(200);
    let mut watched =
        Watched::start(client_within(&fake, Deadlines { watch_start, ..Deadlines::default() }), timings());
    fake.until_called(watches(), 3).await;
    logs.until_logged(&["watch was not answered within 0.2 s"]).await;
    assert_eq!(fake.calls(lists()).len(), 1, "nothing was missed, so nothing is listed again");
    fake.put(&config_map("a"));
    assert_eq!(watched.next_change().await, "+a");
}

#[tokio::test]
async fn a_list_that_never_ends_is_cut_at_its_deadline() {
    let logs = Logs::capture();
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    fake.next(lists(), [Answer::NoHeaders, Answer::HalfABody(200)]);
    let list = Duration::from_millis(200);
    let mut watched =
        Watched::start(client_within(&fake, Deadlines { list, ..Deadlines::default() }), timings());
    assert_eq!(watched.next_change().await, "+a");
    logs.until_logged(&["list was not answered within 0.2 s"]).await;
}

#[tokio::test]
async fn a_bookmark_moves_the_version_that_is_resumed() {
    let fake = ScriptedApi::start().await;
    let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"777"}}}"#;
    fake.next(watches(), [Answer::Lines(vec![bookmark.into()], End::Close)]);
    let _watched = Watched::start(client(&fake), timings());
    assert_eq!(fake.until_called(watches(), 2).await[1].query["resourceVersion"], "777");
}

/// The last event of a connection that ends at once has version 777, and the next one goes on there.
async fn assert_resumed_after(event: &str, object: serde_json::Value) {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    let line = format!(r#"{{"type":"{event}","object":{object}}}"#);
    fake.next(watches(), [Answer::Lines(vec![line], End::Close)]);
    let _watched = Watched::start(client(&fake), timings());
    assert_eq!(fake.until_called(watches(), 2).await[1].query["resourceVersion"], "777");
    assert_eq!(fake.calls(lists()).len(), 1);
}

#[tokio::test]
async fn a_deletion_moves_the_version_that_is_resumed() {
    let mut deleted = config_map("a");
    deleted.metadata.resource_version = Some("777".into());
    assert_resumed_after("DELETED", serde_json::to_value(deleted).unwrap()).await;
}

#[tokio::test]
async fn an_object_that_does_not_fit_moves_the_version_that_is_resumed() {
    let metadata = json!({"namespace": "demo", "name": "bad", "resourceVersion": "777"});
    assert_resumed_after("MODIFIED", json!({"metadata": metadata, "data": "no map"})).await;
}

#[tokio::test]
async fn an_object_that_does_not_fit_does_not_keep_an_older_one_of_its_name() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    let mut watched = Watched::start(client(&fake), timings());
    assert_eq!(watched.next_change().await, "+a");
    let metadata = json!({"namespace": "demo", "name": "a", "uid": "another"});
    fake.mute("configmaps");
    fake.put_json("configmaps", json!({"metadata": metadata, "data": "no map"}));
    fake.compact("configmaps");
    assert_eq!(watched.next_change().await, "-a", "the object of the first uid is gone");
}

#[tokio::test]
async fn an_answer_that_comes_while_a_list_is_under_way_stays() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    let gate = Gate::default();
    fake.next(lists(), [Answer::Late(gate.clone())]);
    let mut watched = Watched::start(client(&fake), timings());
    fake.until_called(lists(), 1).await;
    let mut created = config_map("created");
    created.metadata.resource_version = Some("9000".into());
    watched.cache.absorb(created);
    assert_eq!(watched.next_change().await, "+created");
    gate.open();
    assert_eq!(watched.next_change().await, "+a");
    assert_eq!(watched.cache.len(), 2, "the list is older than the answer");
}

#[tokio::test]
async fn an_event_cut_by_a_broken_connection_is_neither_lost_nor_reported_twice() {
    let fake = ScriptedApi::start().await;
    let half = r#"{"type":"ADDED","object":{"metadata":{"na"#;
    let gate = Gate::default();
    fake.next(watches(), [Answer::Lines(vec![half.into()], End::Close), Answer::Late(gate.clone())]);
    let mut watched = Watched::start(client(&fake), timings());
    fake.until_called(watches(), 2).await;
    fake.put(&config_map("a"));
    gate.open();
    assert_eq!(watched.next_change().await, "+a");
    assert_eq!(fake.calls(lists()).len(), 1);
    assert!(watched.has_no_more_changes());
}

/// A watch over so many objects that then has to list again.
async fn listing_again(fake: &ScriptedApi, objects: usize, answers: impl FnOnce(&ScriptedApi)) -> Watched {
    for number in 0..objects {
        fake.put(&config_map(&format!("object-{number:02}")));
    }
    let mut watched = Watched::start(client(fake), timings());
    watched.next_changes(objects).await;
    fake.until_called(watches(), 1).await;
    answers(fake);
    fake.compact("configmaps");
    watched
}

fn empty_list() -> Answer {
    Answer::text(200, r#"{"kind": "ConfigMapList", "metadata": {"resourceVersion": "5000"}, "items": []}"#)
}

#[tokio::test]
async fn a_list_that_loses_most_is_confirmed_by_another_quorum_list() {
    let fake = ScriptedApi::start().await;
    let mut watched = listing_again(&fake, 22, |fake| fake.next(lists(), [empty_list()])).await;
    let asked = fake.until_called(lists(), 3).await;
    assert!(asked.iter().all(|list| !list.query.contains_key("resourceVersion")), "quorum reads: {asked:?}");
    let waited = asked[2].at - asked[1].at;
    assert!(waited >= timings().first_backoff, "a second opinion of the same moment is none: {waited:?}");
    fake.put(&config_map("later"));
    assert_eq!(watched.next_change().await, "+later", "the loss was never reported");
    assert_eq!(watched.cache.len(), 23);
}

#[tokio::test]
async fn an_answer_that_is_no_list_is_a_failure_and_no_empty_list() {
    let fake = ScriptedApi::start().await;
    let wrong = [
        "{}",
        r#"{"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 200}"#,
        r#"{"kind": "ConfigMapList", "metadata": {}, "items": []}"#,
        r#"{"metadata": {"resourceVersion": "5000"}, "items": []}"#,
    ];
    let answers = |fake: &ScriptedApi| fake.next(lists(), wrong.map(|text| Answer::text(200, text)));
    let mut watched = listing_again(&fake, 3, answers).await;
    fake.until_called(lists(), 6).await;
    fake.put(&config_map("later"));
    assert_eq!(watched.next_change().await, "+later", "nothing was lost");
    assert_eq!(watched.cache.len(), 4);
}

/// A kind that failed often would be blind for long after the API server is back.
#[tokio::test]
async fn the_first_watch_that_works_again_wakes_the_others() {
    let fake = ScriptedApi::start().await;
    fake.always(watches(), Answer::status(503, "ServiceUnavailable", "the server is starting"));
    let timings = Timings { longest_backoff: 10 * PATIENCE, ..timings() };
    let mut running = Watches::new(client(&fake), timings, metrics());
    let _slow = running.watch::<ConfigMap>("ConfigMap", Scope::default());
    let _fast = running.watch::<Deployment>("Deployment", Scope::default());
    running.start(&CancellationToken::new());
    // By now it waits for more than three seconds.
    const TRIES: usize = 8;
    let own_wait = timings.first_backoff * 2_u32.pow(u32::try_from(TRIES).unwrap() - 1);
    fake.until_called(watches(), TRIES).await;
    fake.clear_script();
    // The other kind fails once, and works again.
    fake.compact("deployments");
    let tries = fake.until_called(watches(), TRIES + 1).await;
    let waited = tries[TRIES].at - tries[TRIES - 1].at;
    assert!(waited < own_wait, "{waited:?}, not below {own_wait:?}");
}

#[tokio::test]
async fn a_confirmed_loss_is_reported() {
    let fake = ScriptedApi::start().await;
    let answers = |fake: &ScriptedApi| fake.next(lists(), [empty_list(), empty_list()]);
    let mut watched = listing_again(&fake, 22, answers).await;
    let changes = watched.next_changes(22).await;
    assert!(changes.iter().all(|change| change.starts_with('-')), "{changes:?}");
    assert_eq!(fake.calls(lists()).len(), 3);
}

#[tokio::test]
async fn a_loss_whose_confirmation_fails_is_not_reported() {
    let fake = ScriptedApi::start().await;
    let unavailable = Answer::status(503, "ServiceUnavailable", "the server is starting");
    let answers = |fake: &ScriptedApi| fake.next(lists(), [empty_list(), unavailable]);
    let mut watched = listing_again(&fake, 22, answers).await;
    fake.until_called(lists(), 4).await;
    fake.put(&config_map("later"));
    assert_eq!(watched.next_change().await, "+later");
    assert_eq!(watched.cache.len(), 23);
}

#[tokio::test]
async fn a_list_with_mostly_other_names_counts_as_a_loss() {
    let fake = ScriptedApi::start().await;
    let strangers: Vec<_> = (0..22).map(|number| config_map(&format!("stranger-{number}"))).collect();
    let metadata = json!({"resourceVersion": "5000"});
    let other_cluster =
        json!({"kind": "ConfigMapList", "metadata": metadata, "items": strangers}).to_string();
    let answers = |fake: &ScriptedApi| fake.next(lists(), [Answer::text(200, &other_cluster)]);
    let mut watched = listing_again(&fake, 22, answers).await;
    fake.until_called(lists(), 3).await;
    fake.put(&config_map("later"));
    assert_eq!(watched.next_change().await, "+later");
}

#[tokio::test]
async fn a_loss_of_ten_or_of_half_is_reported_at_once() {
    for (objects, lost) in [(10, 10), (24, 12)] {
        let fake = ScriptedApi::start().await;
        let mut watched = listing_again(&fake, objects, |fake| {
            fake.mute("configmaps");
            for number in 0..lost {
                fake.remove("configmaps", &format!("object-{number:02}"));
            }
        })
        .await;
        let changes = watched.next_changes(lost).await;
        assert!(changes.iter().all(|change| change.starts_with('-')), "{changes:?}");
        assert_eq!(fake.calls(lists()).len(), 2);
    }
}

#[tokio::test]
async fn a_later_answer_is_not_overwritten_by_an_earlier_event() {
    let fake = ScriptedApi::start().await;
    fake.put(&config_map("a"));
    let mut watched = Watched::start(client(&fake), timings());
    assert_eq!(watched.next_change().await, "+a");
    fake.until_called(watches(), 1).await;
    // Our own write was answered with this version before the watch came so far.
    let mut answer = config_map("a");
    answer.metadata.resource_version = Some("9000".into());
    watched.cache.absorb(answer);
    assert_eq!(watched.next_change().await, "~a");
    fake.put(&config_map("a"));
    fake.put(&config_map("fence"));
    assert_eq!(watched.next_change().await, "+fence", "no subscriber sees an older version");
}

#[tokio::test]
async fn watches_that_are_stopped_end_at_once() {
    let fake = ScriptedApi::start().await;
    let stop = CancellationToken::new();
    let mut running = Watches::new(client(&fake), timings(), metrics());
    let _cache = running.watch::<ConfigMap>("ConfigMap", Scope::default());
    running.start(&stop);
    fake.until_called(watches(), 1).await;
    stop.cancel();
    within_patience("the end", running.finished(&stop)).await;
}

/// What a namespace's users may write by the hundred: pages get smaller until they fit, and the list is complete.
#[tokio::test]
async fn a_list_of_large_objects_comes_in_pages_that_fit_into_memory() {
    let fake = ScriptedApi::start().await;
    for number in 0..40 {
        let mut large = config_map(&format!("large-{number:02}"));
        large.data = Some([("text".to_owned(), "x".repeat(1 << 20))].into());
        fake.put(&large);
    }
    let mut watched = Watched::start(client(&fake), timings());
    assert_eq!(watched.next_changes(40).await.len(), 40);
    assert_eq!(watched.cache.len(), 40);
    let limits: Vec<u32> = fake
        .calls(Verb::List.of("configmaps"))
        .iter()
        .map(|call| call.query["limit"].parse().unwrap())
        .collect();
    assert!(limits.len() > 5 && limits.iter().skip(4).all(|limit| *limit < 32), "{limits:?}");
}

#[tokio::test]
async fn a_list_of_small_objects_comes_in_few_pages() {
    let fake = ScriptedApi::start().await;
    for number in 0..1_001 {
        fake.put(&config_map(&format!("small-{number:04}")));
    }
    let mut watched = Watched::start(client(&fake), timings());
    watched.next_changes(1_001).await;
    let limits: Vec<String> =
        fake.calls(Verb::List.of("configmaps")).iter().map(|call| call.query["limit"].clone()).collect();
    assert_eq!(limits, ["500", "500", "500"]);
}
