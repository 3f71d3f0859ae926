//! What becomes of writes of replicas and statuses: refused, failed, lost, outdated.

use runtime::write::scale::Scaled;

use super::*;
use crate::{apply::apply, history::attempt::Attempted, plan::Plan, target::other_kinds::ScaleRead};

/// The notes of the events with the reason SuccessfulRescale.
fn rescales(api: &ScriptedApi) -> Vec<String> {
    let calls = api.calls(Verb::Create.of("events")).into_iter();
    let of_scale = calls.filter(|call| call.body["reason"] == "SuccessfulRescale");
    of_scale.map(|call| call.body["note"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_step_has_its_event_although_the_write_of_the_status_fails() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = asks_for_three(&api, &ctx, &server).await;
    api.always(Verb::Patch.of("aiscalers"), Answer::status(503, "ServiceUnavailable", "etcd is overloaded"));
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap_err();
    reconcile(&ctx, scaler, now()).await.unwrap_err();
    assert_eq!((replicas(&api), rescales(&api).len()), (json!(3), 1));
}

#[tokio::test]
async fn a_refused_write_is_sent_once_per_period() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    asks_for_three(&api, &ctx, &server).await;
    api.always(Verb::Update.of("deployments"), Answer::status(422, "Invalid", "no"));
    for (seconds, writes) in [(0, 1), (5, 1), (14, 1), (15, 2), (16, 2)] {
        reconcile(&ctx, current(&ctx), later(seconds)).await.unwrap();
        assert_eq!(api.calls(Verb::Update.of("deployments")).len(), writes, "after {seconds} s");
        assert_eq!(condition(&api, "AbleToScale").0, "FailedUpdateScale");
    }
}

#[tokio::test]
async fn a_refusal_is_reported_with_the_past_of_the_version_that_was_confirmed() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = asks_for_three(&api, &ctx, &server).await;
    let uid = scaler.metadata.uid.as_deref().unwrap();
    // By the status of a version that was out of date, these 9 replicas are those of this controller.
    let contest = crate::history::contest::Contest::default().written(9);
    let past = crate::history::Past { contest, ..Default::default() };
    ctx.samples.remember(uid, past.of_target("d"), Some("1 before"));
    api.always(Verb::Update.of("deployments"), Answer::status(422, "Invalid", "no"));
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap();
    assert_eq!(condition(&api, "AbleToScale").0, "FailedUpdateScale");
    let first_look = crate::history::contest::Contest::default().resumed(1, false, now());
    assert_eq!(
        observe(&ctx, &current(&ctx), now()).past.contest,
        first_look,
        "the replicas that were found count as no write of anybody"
    );
}

#[tokio::test]
async fn an_attempt_that_failed_is_no_explanation_of_a_later_write_of_another() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = asks_for_three(&api, &ctx, &server).await;
    api.next(Verb::Update.of("deployments"), [Answer::status(504, "Timeout", "the request timed out")]);
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap_err();
    let attempted = || ctx.samples.of(scaler.metadata.uid.as_deref().unwrap()).attempted;
    assert!(attempted().is_some());
    // The target changes, and its replicas do not: the write has had no effect, and will have none.
    put_deployment(&api, &ctx, 1, json!({"labels": {"a": "b"}}));
    let mut paused = AIScaler::clone(&scaler);
    paused.spec.paused = true;
    reconcile(&ctx, Arc::new(paused), now()).await.unwrap();
    assert_eq!(attempted(), None);
    assert!(rescales(&api).is_empty());
}

#[tokio::test]
async fn own_writes_are_known_at_once_and_a_lost_answer_is_no_foreign_write() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    put_deployment(&api, &ctx, 1, json!({}));
    secret(&api, "demo", "token", OLD);
    let scaler = stored_scaler(&api, &ctx, of_deployment(query(server.address)));
    collect::read(&ctx, &scaler, now()).await;
    api.next(Verb::Update.of("deployments"), [Answer::status(504, "Timeout", "the request timed out")]);
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap_err();
    // It took effect after all, and the watch says so.
    put_deployment(&api, &ctx, 3, json!({}));
    let seen = observe(&ctx, &scaler, now());
    assert_eq!(seen.past.contest, crate::history::contest::Contest::default().written(3));
    reconcile(&ctx, Arc::clone(&scaler), now()).await.unwrap();
    let status = current(&ctx).status.clone().unwrap();
    assert_eq!(status.decisions.iter().map(|known| (known.from, known.to)).collect::<Vec<_>>(), [(1, 3)]);
    assert_eq!((status.history.unwrap().scale_events[0].change, status.last_scale_time.is_some()), (2, true));
    assert_eq!(
        rescales(&api),
        [
            "Deployment chat: 1 to 3 replicas: queue_depth is 12 per replica, targetValue 5 (DesiredWithinRange)"
        ]
    );
    assert_eq!(ctx.samples.of(scaler.metadata.uid.as_deref().unwrap()).attempted, None);

    put_deployment(&api, &ctx, 20, json!({}));
    reconcile(&ctx, current(&ctx), later(15)).await.unwrap();
    let known = ctx.deployments.get(&Key::new("demo", "chat")).unwrap();
    assert_eq!(known.replicas, 10, "the answer of the write, before any watch event");
    let stored = api.stored("deployments", "chat").unwrap();
    assert_eq!(known.metadata.resource_version.as_deref(), stored["metadata"]["resourceVersion"].as_str());
}

/// An AIScaler of a Deployment with 1 replica whose metric asks for 3.
async fn asks_for_three(api: &ScriptedApi, ctx: &Context, server: &Prometheus) -> Arc<AIScaler> {
    put_deployment(api, ctx, 1, json!({}));
    secret(api, "demo", "token", OLD);
    let scaler = stored_scaler(api, ctx, of_deployment(query(server.address)));
    collect::read(ctx, &scaler, now()).await;
    scaler
}

fn replicas(api: &ScriptedApi) -> Value {
    api.stored("deployments", "chat").unwrap()["spec"]["replicas"].clone()
}

#[tokio::test]
async fn no_replicas_are_written_while_the_watch_of_aiscalers_fails() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let mut ctx = context(&api, &[server.address]);
    let scaler = asks_for_three(&api, &ctx, &server).await;
    api.always(Verb::Watch.of("aiscalers"), Answer::status(500, "InternalError", "etcdserver: no leader"));
    let config = Config::new(format!("http://{}", api.address()).parse().unwrap());
    let metrics = Arc::new(Metrics::new(NAME));
    let client =
        build(&config, Deadlines::default(), WriteGuard::Always, Arc::clone(&metrics), Clock::default())
            .unwrap();
    let timings = Timings { first_backoff: Duration::from_millis(1), ..Timings::default() };
    let mut watches = Watches::new(client, timings, metrics);
    ctx.scalers = watches.watch::<AIScaler>("AIScaler", Scope::default());
    let stop = CancellationToken::new();
    watches.start(&stop);
    api.until_called(Verb::Watch.of("aiscalers"), 2).await;
    let Target::Unknown(why) = observe(&ctx, &scaler, now()).target else { panic!("it may be out of date") };
    assert_eq!(why, "the watch of AIScalers fails, so this one may be out of date");
    reconcile(&ctx, scaler, now()).await.unwrap();
    assert_eq!(replicas(&api), 1);
    stop.cancel();
}

#[tokio::test]
async fn a_new_process_reads_its_aiscaler_once_before_it_writes_replicas_and_not_at_all_if_it_is_out_of_date()
{
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let seen = asks_for_three(&api, &ctx, &server).await;
    // The user lowers the maximum, and the watch does not deliver it.
    let mut newer = serde_json::to_value(&*seen).unwrap();
    newer["spec"]["maxReplicas"] = json!(2);
    api.put_json("aiscalers", newer);
    api.clear_records();
    reconcile(&ctx, seen, now()).await.unwrap();
    assert_eq!((replicas(&api), api.verbs()), (json!(1), vec!["Get aiscalers".to_owned()]));
    reconcile(&ctx, current(&ctx), now()).await.unwrap();
    assert_eq!(replicas(&api), 2, "as the version that was read says");
    put_deployment(&api, &ctx, 1, json!({}));
    reconcile(&ctx, current(&ctx), later(30)).await.unwrap();
    assert_eq!((replicas(&api), api.calls(Verb::Get.of("aiscalers")).len()), (json!(2), 2), "confirmed once");
}

#[tokio::test]
async fn a_past_of_a_status_that_was_out_of_date_is_not_kept() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let seen = stored_scaler(&api, &ctx, json!({"deploymentName": "chat"}));
    let uid = seen.metadata.uid.as_deref().unwrap();
    let of = |scaler: &Arc<AIScaler>| observe(&ctx, scaler, now()).is_resumed;
    ctx.samples.remember(uid, Default::default(), seen.metadata.resource_version.as_deref());
    let mut newer = AIScaler::clone(&seen);
    newer.metadata.resource_version = Some("999".into());
    let newer = Arc::new(newer);
    assert_eq!((of(&seen), of(&newer)), (false, true));
    ctx.samples.confirm(uid, seen.metadata.resource_version.as_deref());
    assert!(!of(&newer));
}

#[test]
fn what_a_write_has_answered_is_not_replaced_by_what_was_read_before_it() {
    let samples = crate::samples::Samples::default();
    let target =
        Reference { api_version: "argoproj.io/v1alpha1".into(), kind: "Rollout".into(), name: "chat".into() };
    let scale = |version: &str| ScaleRead::Found {
        resource: rollouts(),
        scaled: Scaled {
            uid: "r".into(),
            version: version.into(),
            replicas: 1,
            status_replicas: 1,
            selector: String::new(),
        },
    };
    let known = || samples.of("u").scale.map(|(_, read)| read);
    samples.note_read_scale("u", &target, scale("1"), None);
    let before = samples.of("u").scale;
    samples.note_scale("u", &target, scale("3"));
    samples.note_read_scale("u", &target, scale("2"), before.as_ref());
    assert_eq!(known(), Some(scale("3")));
    samples.note_read_scale("u", &target, scale("4"), samples.of("u").scale.as_ref());
    assert_eq!(known(), Some(scale("4")));
}

#[tokio::test]
async fn a_write_that_fails_again_and_again_is_in_the_status() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = asks_for_three(&api, &ctx, &server).await;
    let webhook = "failed calling webhook \"policy.example.com\": no endpoints available";
    api.always(Verb::Update.of("deployments"), Answer::status(500, "InternalError", webhook));
    reconcile(&ctx, scaler, now()).await.unwrap_err();
    assert!(current(&ctx).status.is_none(), "the next try may succeed");
    for seconds in [1, 2] {
        reconcile(&ctx, current(&ctx), later(seconds)).await.expect_err("it is tried again");
    }
    let (reason, message) = condition(&api, "AbleToScale");
    assert_eq!(reason, "FailedUpdateScale");
    assert!(message.contains(webhook), "{message}");
    assert_eq!((replicas(&api), rescales(&api).len()), (json!(1), 0));
    api.clear_script();
    reconcile(&ctx, current(&ctx), later(3)).await.unwrap();
    assert_eq!((replicas(&api), condition(&api, "AbleToScale").0), (json!(3), "ReadyForNewScale".to_owned()));
}

#[tokio::test]
async fn an_aiscaler_that_the_api_server_calls_outdated_is_read_before_the_next_write_of_replicas() {
    let (api, server) = (ScriptedApi::start().await, Prometheus::start("s3cret").await);
    let ctx = context(&api, &[server.address]);
    let scaler = asks_for_three(&api, &ctx, &server).await;
    reconcile(&ctx, scaler, now()).await.unwrap();
    // The user pauses it, and the watch does not deliver that.
    let seen = current(&ctx);
    let mut newer = serde_json::to_value(&*seen).unwrap();
    newer["spec"]["paused"] = json!(true);
    api.put_json("aiscalers", newer);
    put_deployment(&api, &ctx, 1, json!({}));
    reconcile(&ctx, Arc::clone(&seen), later(15)).await.expect_err("the status is outdated");
    put_deployment(&api, &ctx, 2, json!({}));
    api.clear_records();
    reconcile(&ctx, seen, later(30)).await.unwrap();
    assert_eq!((replicas(&api), api.verbs()), (json!(2), vec!["Get aiscalers".to_owned()]));
}

#[tokio::test]
async fn a_status_that_is_not_sent_ends_no_doubt_about_the_version() {
    let api = ScriptedApi::start().await;
    let ctx = context(&api, &[]);
    let scaler = stored_scaler(&api, &ctx, json!({"deploymentName": "chat"}));
    // There is no such Deployment, and the status says so.
    reconcile(&ctx, scaler, now()).await.unwrap();
    let seen = current(&ctx);
    assert!(observe(&ctx, &seen, now()).is_confirmed, "the API server has accepted a status of that version");
    ctx.samples.doubt(seen.metadata.uid.as_deref().unwrap());
    let same = Plan {
        attempted: Attempted::Nothing,
        scale: None,
        past: None,
        status: seen.status.clone(),
        events: Vec::new(),
        requeue_after: None,
    };
    api.clear_records();
    apply(&ctx, &seen, &same, later(15)).await.unwrap();
    assert!(api.verbs().is_empty(), "{:?}", api.verbs());
    assert!(!observe(&ctx, &seen, later(15)).is_confirmed);
}
