//! Candidates whose engines do something wrong, side by side: each gets the verdict and the reason that fit.
//!
//! The engines are stand-ins that count, see `tests::inference::engines`. The nodes are simulated, in a network apart, which
//! needs root as real nodes do.

use std::time::Duration;

use api::{
    aiinference::{
        AIInference,
        traffic::{CanaryPhase, CanaryStatus},
    },
    conditions,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use local_cluster::{ClusterSpec, NodePool};
use serde_json::{Value, json};
use tests::{
    Scene, controller, fresh_name,
    gateway::Gateway,
    in_own_network,
    inference::{
        CONTROLLER, change, condition, create,
        engines::{self, Engine},
        until_ready,
    },
    start, tools, until_renewed, wait_for, within,
};

/// One candidate, and what has to become of it.
struct Case {
    name: &'static str,
    engine: Engine,
    metric: &'static str,
    ends: Ends,
}

enum Ends {
    /// The step has passed, and waits for the approval of the promotion.
    Passed,
    /// By its requests. The words are those of the rollback.
    Failed { words: &'static str },
    /// `CanaryHealthy` is false, and the share stays.
    Undecided { reason: &'static str, words: &'static str },
    /// Its engine ends after a hundred requests, and it is rolled back because of that.
    Crashed,
    /// It is never ready, and gets no share.
    NeverReady,
}

const GOOD: Engine = Engine::GOOD;

/// Each has the same number of requests as stable.
const CASES: [Case; 7] = [
    Case { name: "good", engine: GOOD, metric: "errorRate", ends: Ends::Passed },
    Case {
        name: "errors",
        engine: Engine { errors: 5, ..GOOD },
        metric: "errorRate",
        ends: Ends::Failed { words: "(5.0 %) failed, 0 of " },
    },
    Case {
        name: "repetitions",
        engine: Engine { repetitions: 5, ..GOOD },
        metric: "repetitionRate",
        ends: Ends::Failed { words: "(5.0 %) " },
    },
    Case {
        name: "resets",
        engine: Engine { resets_after: Some(160), ..GOOD },
        metric: "errorRate",
        ends: Ends::Passed,
    },
    Case {
        name: "buckets",
        engine: Engine { has_other_buckets: true, ..GOOD },
        metric: "ttft",
        ends: Ends::Undecided {
            reason: "BucketMismatch",
            words: "; those of the candidate end at 15, 150, 1500, 15000 ms",
        },
    },
    Case { name: "crash", engine: GOOD, metric: "errorRate", ends: Ends::Crashed },
    Case { name: "never-ready", engine: GOOD, metric: "errorRate", ends: Ends::NeverReady },
];

/// Latencies are counted from two minutes after the share has risen.
const SLOW: Case = Case {
    name: "slow",
    engine: Engine { first_token: 3 * GOOD.first_token, ..GOOD },
    metric: "ttft",
    ends: Ends::Failed { words: "(100 %) took longer than 80 ms, 0 of " },
};
const WARM_WITHIN: Duration = Duration::from_secs(300);

/// Starts the canaries, and checks what becomes of each.
async fn are_judged(cases: &[Case]) {
    let cluster = start(ClusterSpec::simulated(fresh_name(), tools(), NodePool::default())).await;
    let scene = Scene::new(&cluster).await;
    // Before the controller, which finds a new kind within a minute.
    let _stand_in = Gateway::start(&scene).await;
    cluster.start_controller(&controller(CONTROLLER)).await.unwrap();
    let engine_of = |pod: &Pod| {
        let label = |name: &str| pod.labels().get(name).map(String::as_str);
        let is_candidate = label("ai.infra.example.com/track") == Some("canary");
        let case = cases.iter().find(|case| label("app.kubernetes.io/instance") == Some(case.name));
        case.filter(|_| is_candidate).map_or(GOOD, |case| case.engine)
    };
    tokio::select! {
        _ = join_all(cases.iter().map(|case| is_judged(&scene, case))) => {}
        () = engines::serve(&scene, engine_of) => {}
    }
}

async fn is_judged(scene: &Scene<'_>, case: &Case) {
    let Case { name, metric, ends, .. } = case;
    let gateway = json!({"name": "public", "hostnames": [format!("{name}.example.com")]});
    create(scene, name, json!({"image": "engine:1", "gateway": gateway})).await;
    until_ready(scene, name).await;
    let never_ready = match ends {
        Ends::NeverReady => Some(json!({"name": "SIM_NEVER_READY", "value": "true"})),
        Ends::Passed | Ends::Failed { .. } | Ends::Crashed | Ends::Undecided { .. } => None,
    };
    // The crash comes before a verdict.
    let min_requests = if matches!(ends, Ends::Crashed) { 100_000 } else { 100 };
    let env: Vec<Value> = never_ready.into_iter().collect();
    let canary = json!({
        "image": "engine:2",
        "env": env,
        "steps": [{"weightPercent": 50, "minSeconds": 5, "minRequests": min_requests}],
        "analysis": {"intervalSeconds": 5, "metrics": [{"name": metric}]},
    });
    change(scene, name, json!({"canary": canary})).await;
    match ends {
        Ends::Passed => {
            let canary = until(scene, case, "it passes", |_, canary| {
                canary.phase == Some(CanaryPhase::AwaitingApproval)
            })
            .await;
            let analysis = canary.analysis.expect("an analysis");
            assert_eq!((&*analysis.verdict, &*analysis.reason), ("Pass", "Passing"), "{name}");
            let counts = &analysis.metrics[0].candidate;
            assert!(counts.ended >= 100 && counts.bad == 0, "{name}: {counts:?}");
        }
        Ends::Failed { words } => {
            let canary = until_rolled_back(scene, case, ("AnalysisFailed", words)).await;
            let analysis = canary.analysis.expect("an analysis");
            assert_eq!((&*analysis.verdict, &*analysis.reason), ("Fail", "Alarm"), "{name}: {analysis:?}");
        }
        Ends::Crashed => {
            let has_answered = |_: &AIInference, canary: &CanaryStatus| {
                let analysis = canary.analysis.as_ref();
                analysis.is_some_and(|analysis| analysis.metrics[0].candidate.ended >= 100)
            };
            until(scene, case, "a hundred requests", has_answered).await;
            crash(scene, name).await;
            let words = "ended with exit code 1 (Error) while it had a share";
            let canary = until_rolled_back(scene, case, ("CandidateCrashed", words)).await;
            let analysis = canary.analysis.expect("an analysis");
            assert_eq!(analysis.verdict, "Inconclusive", "{name}: {analysis:?}");
        }
        Ends::Undecided { reason, words } => {
            let is_said = |inference: &AIInference, _: &CanaryStatus| {
                condition(inference, conditions::CANARY_HEALTHY).is_some_and(|healthy| {
                    (&*healthy.status, &*healthy.reason) == ("False", *reason)
                        && healthy.message.contains(words)
                })
            };
            let canary = until(scene, case, reason, is_said).await;
            let analysis = canary.analysis.expect("an analysis");
            assert_eq!((&*analysis.verdict, &*analysis.reason), ("Inconclusive", *reason), "{name}");
            assert_eq!(canary.phase, Some(CanaryPhase::Analysing), "{name}");
            assert_eq!((canary.weight_percent, canary.last_rollback), (50, None), "{name}");
        }
        Ends::NeverReady => {
            let runs = |_: &AIInference, canary: &CanaryStatus| canary.replicas == 1;
            until(scene, case, "it runs", runs).await;
            // Later than the others get their shares.
            until_renewed(scene, CONTROLLER, 2).await;
            let canary = until(scene, case, "it still runs", runs).await;
            assert_eq!((canary.phase, canary.weight_percent), (Some(CanaryPhase::Starting), 0), "{name}");
            assert_eq!((canary.ready_replicas, canary.step), (0, 0), "{name}");
        }
    }
}

async fn until_rolled_back(scene: &Scene<'_>, case: &Case, (reason, words): (&str, &str)) -> CanaryStatus {
    let name = case.name;
    let canary = until(scene, case, reason, |_, canary| canary.last_rollback.is_some()).await;
    let rollback = canary.last_rollback.as_ref().expect("a rollback");
    assert_eq!(rollback.reason, reason, "{name}: {rollback:?}");
    assert!(rollback.message.contains(words), "{name}: {}", rollback.message);
    let phase = canary.phase.expect("a phase");
    assert!([CanaryPhase::RollingBack, CanaryPhase::RolledBack].contains(&phase), "{name}: {phase:?}");
    until(scene, case, "no share", |_, canary| canary.weight_percent == 0).await;
    canary
}

/// Lets the engine of the candidate end.
async fn crash(scene: &Scene<'_>, name: &str) {
    let pods = scene.api::<Pod>();
    let labels = format!("app.kubernetes.io/instance={name},ai.infra.example.com/track=canary");
    let all = pods.list(&ListParams::default().labels(&labels)).await.unwrap();
    let annotations = json!({"sim.ai.infra.example.com/crash-reason": "Error"});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    for pod in all {
        pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
}

async fn until(
    scene: &Scene<'_>,
    case: &Case,
    what: &str,
    holds: impl Fn(&AIInference, &CanaryStatus) -> bool,
) -> CanaryStatus {
    let canary = |inference: &AIInference| inference.status.as_ref()?.canary.clone();
    let deadline = within().max(WARM_WITHIN);
    let inferences = scene.api::<AIInference>();
    let inference = wait_for(&inferences, case.name, what, deadline, |inference| {
        canary(inference).is_some_and(|canary| holds(inference, &canary))
    });
    canary(&inference.await).expect("a canary")
}

#[tokio::test]
async fn what_an_engine_does_wrong_decides_over_its_version() {
    if in_own_network("what_an_engine_does_wrong_decides_over_its_version") {
        are_judged(&CASES).await;
    }
}

#[tokio::test]
async fn an_engine_whose_first_tokens_take_three_times_as_long_is_rolled_back() {
    if in_own_network("an_engine_whose_first_tokens_take_three_times_as_long_is_rolled_back") {
        are_judged(&[SLOW]).await;
    }
}
