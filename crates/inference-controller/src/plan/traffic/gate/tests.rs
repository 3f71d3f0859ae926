use std::sync::Arc;

use super::*;
use crate::tests::Scene;

const DIGEST: &str = "sha256:aa";

fn evaluation(status: &str) -> EvaluationView {
    let text = format!("{{metadata: {{name: nightly, namespace: demo, uid: u-1}}, status: {status}}}");
    serde_saphyr::from_str(&text).unwrap()
}

fn passed(candidate: &str) -> EvaluationView {
    let status = format!("{{phase: Succeeded, verdict: Passed, resolved: {{candidate: {{{candidate}}}}}}}");
    evaluation(&status)
}

fn canary() -> Canary {
    serde_saphyr::from_str("{modelSource: 's3://models/v2', evaluationName: nightly}").unwrap()
}

/// `loaded`: of the only ready pod; `None`: there is none.
fn of(found: Option<EvaluationView>, before: Option<&CanaryStatus>, loaded: Option<&str>) -> Evaluated {
    of_pods(found, before, &loaded.map(|digest| pod("a", Some(digest))).into_iter().collect::<Vec<_>>())
}

fn of_pods(
    found: Option<EvaluationView>,
    before: Option<&CanaryStatus>,
    ready: &[(String, Option<String>)],
) -> Evaluated {
    let mut scene = Scene::ready(1);
    scene.observe(|observed| observed.evaluation = found.map(Arc::new));
    evaluated(&scene.observed(), Some(&canary()), before, ready)
}

fn pod(name: &str, digest: Option<&str>) -> (String, Option<String>) {
    (name.to_owned(), digest.map(str::to_owned))
}

fn record(confirmed: bool) -> PassedEvaluation {
    let (name, uid, digest) = ("nightly".to_owned(), "u-1".to_owned(), DIGEST.to_owned());
    PassedEvaluation { name, uid, digest, confirmed }
}

fn with(record: PassedEvaluation) -> CanaryStatus {
    CanaryStatus { evaluation: Some(record), ..CanaryStatus::default() }
}

fn why(evaluated: &Evaluated) -> (Gate, &'static str, String) {
    let (reason, message) = evaluated.why.clone().unwrap();
    (evaluated.gate, reason, message)
}

#[test]
fn without_a_name_nothing_is_asked() {
    let scene = Scene::ready(1);
    let canary = Canary { evaluation_name: None, ..canary() };
    for canary in [None, Some(&canary)] {
        let found = evaluated(&scene.observed(), canary, None, &[pod("a", Some("sha256:bb"))]);
        assert_eq!((found.gate, found.passed, found.why), (Gate::Open, None, None));
    }
}

#[test]
fn only_the_verdict_passed_lets_the_pods_come_up() {
    let cases = [
        ("{}", reasons::EVALUATION_PENDING, "no verdict yet"),
        (
            "{phase: Running}",
            reasons::EVALUATION_PENDING,
            "kubectl describe me nightly says what it waits for",
        ),
        // Words of a verdict without its end, and of a later release.
        ("{phase: Comparing, verdict: Passed}", reasons::EVALUATION_PENDING, "no verdict yet"),
        ("{phase: Later, verdict: Passed}", reasons::EVALUATION_PENDING, "no verdict yet"),
        (
            "{phase: Succeeded, verdict: Regressed, difference: '-3.10 [-4.20, -2.00]'}",
            reasons::EVALUATION_NOT_PASSED,
            "has the verdict Regressed (-3.10 [-4.20, -2.00] points)",
        ),
        (
            "{phase: Succeeded, verdict: Inconclusive}",
            reasons::EVALUATION_NOT_PASSED,
            "has the verdict Inconclusive; change",
        ),
        ("{phase: Succeeded}", reasons::EVALUATION_NOT_PASSED, "has ended without a verdict"),
        (
            "{phase: Failed, message: no GPU}",
            reasons::EVALUATION_NOT_PASSED,
            "has failed: no GPU; correct this, delete the evaluation and create it again",
        ),
    ];
    for (status, reason, words) in cases {
        let (gate, found, message) = why(&of(Some(evaluation(status)), None, Some(DIGEST)));
        assert_eq!((gate, found), (Gate::Closed, reason), "{status}");
        assert!(message.contains(words) && message.contains("demo/nightly"), "{message}");
    }
    let (gate, reason, message) = why(&of(None, None, None));
    assert_eq!((gate, reason), (Gate::Closed, reasons::EVALUATION_NOT_FOUND));
    assert!(message.contains("does not exist; create it"), "{message}");
    let mut scene = Scene::ready(1);
    scene.observe(|observed| observed.has_no_evaluations = true);
    let (_, _, message) = why(&evaluated(&scene.observed(), Some(&canary()), None, &[]));
    assert!(message.contains("or this controller may not list them"), "{message}");
}

#[test]
fn the_digest_of_each_ready_pod_has_to_be_that_of_the_evaluation() {
    let source = format!("modelSource: 's3://models/v2', digest: '{DIGEST}'");
    let found = of(Some(passed(&source)), None, None);
    let (gate, reason, _) = why(&found);
    assert_eq!((gate, reason), (Gate::PodsOnly, reasons::EVALUATION_PENDING), "the pods come up first");
    assert_eq!(found.passed, Some(record(false)), "the pass stays, whatever becomes of the evaluation");
    let found = of(Some(passed(&source)), None, Some(DIGEST));
    assert_eq!((found.gate, found.passed), (Gate::Open, Some(record(true))));
    let (gate, reason, message) = why(&of(Some(passed(&source)), None, Some("sha256:bb")));
    assert_eq!((gate, reason), (Gate::PodsOnly, reasons::EVALUATION_FOR_OTHER_MODEL), "its pods stay");
    assert!(
        message.contains("is about sha256:aa, and pod a of the candidate has loaded sha256:bb"),
        "{message}"
    );
    let both = [pod("a", Some(DIGEST)), pod("b", Some("sha256:bb"))];
    let (_, reason, message) = why(&of_pods(Some(passed(&source)), None, &both));
    assert_eq!(reason, reasons::EVALUATION_FOR_OTHER_MODEL);
    assert!(message.contains("pod b"), "{message}");
    let unknown = [pod("a", Some(DIGEST)), pod("b", None)];
    let (gate, reason, message) = why(&of_pods(Some(passed(&source)), None, &unknown));
    assert_eq!((gate, reason), (Gate::PodsOnly, reasons::EVALUATION_MODEL_UNKNOWN));
    assert!(message.contains("pod b of the candidate does not say"), "{message}");
    for (candidate, words) in [
        ("url: 'https://models.example/v1'", "it was an endpoint"),
        ("modelSource: 's3://models/v2'", "has no digest of the files"),
        ("digest: 'sha256:aa', adapters: 'pvc://out/lora'", "LoRA adapters"),
    ] {
        let (gate, reason, message) = why(&of(Some(passed(candidate)), None, Some(DIGEST)));
        assert_eq!((gate, reason), (Gate::Closed, reasons::EVALUATION_FOR_OTHER_MODEL), "{candidate}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_pass_holds_for_its_version_after_the_evaluation_is_gone() {
    for (confirmed, loaded, gate) in [
        (false, None, Gate::PodsOnly),
        (false, Some(DIGEST), Gate::Open),
        (true, None, Gate::Open),
        (true, Some(DIGEST), Gate::Open),
        // The location has other files by now.
        (false, Some("sha256:bb"), Gate::PodsOnly),
        (true, Some("sha256:bb"), Gate::Contradicted),
    ] {
        let before = with(record(confirmed));
        let found = of(None, Some(&before), loaded);
        assert_eq!(found.gate, gate, "{confirmed} {loaded:?}");
        let passed = record(confirmed || loaded == Some(DIGEST));
        assert_eq!(found.passed, Some(passed), "{confirmed} {loaded:?}");
    }
    let same = passed(&format!("digest: '{DIGEST}'"));
    let found = of(Some(same), Some(&with(record(true))), Some("sha256:bb"));
    assert_eq!((found.gate, found.passed), (Gate::Contradicted, Some(record(true))), "it is still there");
    // An engine on a claim has started again: what it has read is not known, and takes nothing back.
    assert_eq!(of_pods(None, Some(&with(record(true))), &[pod("a", None)]).gate, Gate::Open);
    let other = PassedEvaluation { name: "weekly".to_owned(), ..record(true) };
    assert_eq!(of(None, Some(&with(other)), Some(DIGEST)).gate, Gate::Closed, "another one is asked for");
}

#[test]
fn a_new_pass_replaces_one_for_other_files() {
    let of_b = passed("digest: 'sha256:bb'");
    let before = with(record(true));
    let found = of(Some(of_b.clone()), Some(&before), Some("sha256:bb"));
    assert_eq!(
        (found.gate, found.passed.map(|known| known.digest)),
        (Gate::Open, Some("sha256:bb".to_owned()))
    );
    let found = of(Some(of_b), Some(&before), Some(DIGEST));
    assert_eq!(found.passed, Some(record(true)), "not one that fits");
    let running = of(Some(evaluation("{phase: Running}")), Some(&before), Some("sha256:bb"));
    assert_eq!(running.gate, Gate::Contradicted);
}
