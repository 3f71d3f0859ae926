use super::*;

fn pod(name: &str, is_candidate: bool) -> PodToRead {
    PodToRead {
        uid: name.to_owned(),
        name: name.to_owned(),
        ip: None,
        is_candidate,
        is_ready: true,
        started: 0,
    }
}

fn ask(metrics: &[MetricName]) -> Ask {
    let asked = |name: &MetricName| AskedMetric { name: *name, given: None, known: None };
    Ask {
        step_since: 100,
        counted_until: 100,
        engine: Engine::Vllm,
        port: 8_000,
        path: "/metrics",
        pods: vec![pod("old", false), pod("new", true)],
        metrics: metrics.iter().map(asked).collect(),
        queries: None,
    }
}

fn buckets(counts: &[(&str, u32)]) -> Option<Buckets> {
    let text: String =
        counts.iter().map(|(le, count)| format!("x_bucket{{le=\"{le}\"}} {count}\n")).collect();
    Buckets::of(parse(&text, |_| true).series.iter())
}

fn outcomes(ended: u64, errors: u64) -> Outcomes {
    Outcomes { ended, errors: Some(errors), ..Outcomes::default() }
}

fn looks_of(ask: &Ask, reads: &[[Result<Outcomes, String>; 2]]) -> Vec<Look> {
    let mut counters = Counting::default();
    let of = |(number, read): (usize, &[Result<Outcomes, String>; 2])| {
        let read: Vec<_> = read.iter().cloned().enumerate().collect();
        counted(ask, &read, &mut counters, 115 + 15 * i64::try_from(number).unwrap())
    };
    reads.iter().enumerate().map(of).collect()
}

fn flows(look: &Look, metric: MetricName) -> [(u64, u64); 2] {
    let Found::Counted { flows, .. } = look.metrics[&metric] else { panic!("{look:?}") };
    [flows.stable, flows.candidate].map(|flow| (flow.ended.requests(), flow.ended.bad()))
}

#[test]
fn the_growth_between_two_looks_is_counted_by_version() {
    let looks = looks_of(
        &ask(&[MetricName::ErrorRate]),
        &[[Ok(outcomes(1_000, 9)), Ok(outcomes(10, 0))], [Ok(outcomes(1_090, 10)), Ok(outcomes(20, 3))]],
    );
    assert_eq!(
        flows(&looks[0], MetricName::ErrorRate),
        [(0, 0), (0, 0)],
        "before the step, or counted already"
    );
    assert_eq!(flows(&looks[1], MetricName::ErrorRate), [(90, 1), (10, 3)]);
    assert_eq!((looks[1].at, looks[1].ready_pods.candidate), (130, 1));
}

#[test]
fn a_pod_without_an_answer_makes_the_look_count_for_nobody_and_is_named() {
    let looks = looks_of(
        &ask(&[MetricName::ErrorRate]),
        &[
            [Ok(outcomes(10, 0)), Ok(outcomes(10, 0))],
            [Ok(outcomes(20, 0)), Err("it did not answer".to_owned())],
        ],
    );
    assert_eq!(looks[1].metrics[&MetricName::ErrorRate], Found::Incomplete);
    assert_eq!(looks[1].fault.as_deref(), Some("pod new: it did not answer"));
}

/// Its last counts are read if it still answers. If it does not, it has ended.
#[test]
fn a_pod_that_is_no_longer_ready_counts_if_it_answers() {
    let mut ask = ask(&[MetricName::ErrorRate]);
    let mut counters = Counting::default();
    let read = |new: Result<Outcomes, String>| vec![(0, Ok(outcomes(100, 0))), (1, new)];
    counted(&ask, &read(Ok(outcomes(10, 0))), &mut counters, 115);
    ask.pods[1].is_ready = false;
    let look = counted(&ask, &read(Ok(outcomes(30, 20))), &mut counters, 130);
    assert_eq!((flows(&look, MetricName::ErrorRate)[1], look.ready_pods.candidate), ((20, 20), 0));
    let look = counted(&ask, &read(Err("refused".to_owned())), &mut counters, 145);
    assert_eq!((flows(&look, MetricName::ErrorRate)[1], look.fault), ((0, 0), None));
    let look = counted(&ask, &read(Ok(outcomes(35, 25))), &mut counters, 160);
    assert_eq!(flows(&look, MetricName::ErrorRate)[1], (5, 5), "it came back");
}

#[test]
fn what_runs_in_the_candidate_is_known_if_each_of_its_pods_was_read() {
    let busy = |in_flight| Ok(Outcomes { in_flight, ..outcomes(10, 0) });
    let read = |old, new| {
        let requests = looks_of(&ask(&[]), &[[old, new]])[0].requests.clone();
        requests.map(|requests| (requests.pods.len(), requests.running, requests.ended))
    };
    assert_eq!(read(busy(7), busy(2)), Some((1, 2, 10)));
    assert_eq!(read(Err("refused".to_owned()), busy(0)), Some((1, 0, 10)));
    assert_eq!(read(busy(0), Err("refused".to_owned())), None);
    let mut of_stable = ask(&[]);
    of_stable.pods.pop();
    assert_eq!(counted(&of_stable, &[(0, busy(0))], &mut Counting::default(), 115).requests, None);
}

#[test]
fn tokens_are_counted_by_version_and_a_silent_pod_loses_none() {
    let of = |tokens: u64| Ok(Outcomes { tokens: Some(tokens), ..outcomes(1, 0) });
    let looks = looks_of(
        &ask(&[]),
        &[
            [of(1_000), of(500)],
            [of(1_100), Err("refused".to_owned())],
            [of(1_250), of(700)],
            // Its container has begun anew.
            [of(1_300), of(30)],
            [of(1_400), Ok(outcomes(9, 0))],
        ],
    );
    let tokens: Vec<_> =
        looks.iter().map(|look| look.tokens.map(|known| (known.stable, known.candidate))).collect();
    assert_eq!(tokens, [Some((0, 0)), None, Some((250, 200)), Some((50, 30)), None]);
}

#[test]
fn a_pod_that_was_not_read_in_time_is_named() {
    let look =
        counted(&ask(&[MetricName::ErrorRate]), &[(0, Ok(outcomes(1, 0)))], &mut Counting::default(), 115);
    assert_eq!(look.fault.as_deref(), Some("pod new: it was not read in time"));
    assert_eq!(look.metrics[&MetricName::ErrorRate], Found::Incomplete);
}

#[test]
fn a_metric_that_the_engine_does_not_count_is_incomplete() {
    let looks = looks_of(&ask(&[MetricName::AbortRate]), &[[Ok(outcomes(10, 0)), Ok(outcomes(10, 0))]]);
    assert_eq!(looks[0].metrics[&MetricName::AbortRate], Found::Incomplete);
    assert_eq!(
        looks[0].fault.as_deref(),
        Some(
            "pod old: its engine does not serve abortRate; use a version that does, or remove the metric from \
             spec.canary.analysis.metrics"
        )
    );
}

fn timed(fast: u32, all: u32, second: &str) -> Outcomes {
    let whole_request = buckets(&[("0.5", fast), (second, all), ("+Inf", all)]);
    Outcomes { whole_request, ..outcomes(all.into(), 0) }
}

#[test]
fn slow_is_what_is_above_the_bucket_with_the_95th_percentile_of_stable() {
    let looks = looks_of(
        &ask(&[MetricName::E2e]),
        &[[Ok(timed(96, 100, "1")), Ok(timed(0, 0, "1"))], [Ok(timed(192, 200, "1")), Ok(timed(5, 10, "1"))]],
    );
    assert_eq!(flows(&looks[1], MetricName::E2e), [(100, 4), (10, 5)]);
    let Found::Counted { bound, .. } = looks[1].metrics[&MetricName::E2e] else { panic!() };
    assert_eq!(bound, Bound::from_millis(500).ok());
}

#[test]
fn without_a_request_no_bound_is_chosen_and_nothing_is_missing() {
    let idle = || Ok(outcomes(0, 0));
    let looks = looks_of(&ask(&[MetricName::E2e]), &[[idle(), idle()]]);
    assert_eq!((looks[0].metrics[&MetricName::E2e], &looks[0].fault), (Found::NoRequests, &None));
    let unmeasured = Ok(outcomes(10, 0));
    for (stable, fault) in [
        (Err("refused".to_owned()), "pod old: refused"),
        (
            unmeasured,
            "pod old: its engine does not serve e2e; use a version that does, or remove the metric from spec.canary.analysis.metrics",
        ),
    ] {
        let looks = looks_of(&ask(&[MetricName::E2e]), &[[stable, idle()]]);
        assert_eq!(looks[0].metrics[&MetricName::E2e], Found::Incomplete);
        assert_eq!(looks[0].fault.as_deref(), Some(fault));
    }
}

#[test]
fn versions_without_a_common_bucket_are_not_compared() {
    let slow = || Ok(timed(50, 100, "1"));
    let looks = looks_of(&ask(&[MetricName::E2e]), &[[slow(), Ok(timed(50, 100, "2"))]]);
    assert_eq!(looks[0].metrics[&MetricName::E2e], Found::BucketMismatch);
    let fault = "the candidate has no bucket that ends there; those of the candidate end at 500, 2000 ms";
    assert_eq!(looks[0].fault.as_deref(), Some(fault));
    let mut given = ask(&[MetricName::E2e]);
    given.metrics[0].given = Bound::from_millis(2_000).ok();
    let looks = looks_of(&given, &[[slow(), Ok(timed(50, 100, "2"))]]);
    assert_eq!(looks[0].metrics[&MetricName::E2e], Found::BucketMismatch, "stable has none that ends there");
}

fn nothing() -> Read {
    Read { pods: Vec::new(), queries: None }
}

#[test]
fn looks_stay_until_a_status_has_them_and_only_one_is_under_way() {
    let looks = Looks::default();
    assert!(looks.begin("uid").is_none());
    let ask = ask(&[MetricName::ErrorRate]);
    looks.ask("uid", &ask);
    assert!(looks.of("uid", None).is_asked);
    let (begun, since) = looks.begin("uid").unwrap();
    assert_eq!(since, None, "no query is asked");
    assert!(looks.of("uid", None).is_asked && looks.begin("uid").is_none());
    for at in [115, 130, 145] {
        looks.note("uid", &begun, &nothing(), at);
    }
    drop(UnderWay { looks: &looks, uid: "uid" });
    let known = looks.of("uid", Some(115));
    assert_eq!((known.is_asked, known.looks.len()), (false, 2));
    assert_eq!(looks.of("uid", Some(145)).looks.len(), 1, "the newest says what is wrong");
    looks.note("uid", &Ask { step_since: 200, ..ask }, &nothing(), 215);
    assert_eq!(looks.of("uid", None).looks.len(), 1, "those of another step are forgotten");
    for at in 0..40 {
        looks.note("uid", &begun, &nothing(), 300 + at);
    }
    assert_eq!(looks.of("uid", None).looks.len(), MOST_KEPT);
    looks.forget("uid");
    looks.note("uid", &begun, &nothing(), 400);
    assert_eq!(looks.of("uid", None), Looking::default(), "a deleted object leaves nothing");
}
