//! What each engine serves, and what is read of it.

use engine_metrics::series::MOST_OF_GAUGE;

use super::*;
use text::exposition::parse;

/// Shortened answers of real servers, in the engines' formats.
const VLLM: &str = r#"
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 5.0
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="m"} 4.2421665e+07
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="m"} 1.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 2.0
vllm:e2e_request_latency_seconds_count{engine="0",model_name="m"} 2.0
"#;
const SGLANG: &str = r#"
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 4.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",tp_rank="0"} 3.0
sglang:prompt_tokens_total{model_name="m"} 8.0e+01
sglang:generation_tokens_total{model_name="m"} 20
sglang:e2e_request_latency_seconds_bucket{le="0.1",model_name="m"} 0
sglang:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 2
"#;
const TGI: &str = r#"
# TYPE tgi_queue_size gauge
tgi_queue_size 2
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 8
# TYPE tgi_request_duration histogram
tgi_request_duration_bucket{le="0.00015"} 0
tgi_request_duration_bucket{le="+Inf"} 1
# TYPE tgi_request_input_length histogram
tgi_request_input_length_sum 30
# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_sum 70
"#;
const TRITON: &str = r#"
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="m",version="1"} 161
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 6
nv_inference_pending_request_count{model="n",version="1"} 1
"#;

fn scrape(text: &str, load: Load) -> Scrape {
    let wanted = Wanted::OfEngine(None, load);
    read(&parse(text, |name| wanted.needs(name)), &wanted, "demo/a")
}

fn of(text: &str, load: Load) -> Result<Scraped, Fault> {
    scrape(text, load).value
}

fn of_name(text: &str, name: &str, meaning: Meaning) -> Result<Scraped, Fault> {
    let wanted = Wanted::Named(name.to_owned(), meaning);
    let scrape = read(&parse(text, |name| wanted.needs(name)), &wanted, "demo/a");
    assert_eq!(scrape.requests, None, "whose requests they are is not known");
    scrape.value
}

fn queue(waiting: f64, running: f64, finished: f64) -> Scrape {
    let requests = Requests { waiting, running, finished, tokens: 0.0 };
    Scrape { value: Ok(Scraped::Level(waiting + running)), requests: Some(requests) }
}

#[test]
fn the_queue_is_what_waits_and_what_runs() {
    let level = |value| Scrape { value: Ok(Scraped::Level(value)), requests: None };
    assert_eq!(scrape(VLLM, Load::QueueDepth), queue(5.0, 4.0, 2.0));
    assert_eq!(scrape(TRITON, Load::QueueDepth), level(7.0));
    assert_eq!(scrape(TGI, Load::QueueDepth), queue(2.0, 8.0, 0.0), "it has finished none yet");
    let broken = format!("{TGI}tgi_request_duration_count NaN\n");
    assert_eq!(scrape(&broken, Load::QueueDepth), level(10.0), "the queue can be used without it");
    let finished = format!("{TGI}tgi_request_duration_count 7\n");
    assert_eq!(scrape(&finished, Load::QueueDepth), queue(2.0, 8.0, 7.0));
}

#[test]
fn latencies_and_tokens_come_with_the_requests_that_they_are_of() {
    let finished = format!("{TGI}tgi_request_duration_count 7\n");
    for (load, tokens) in [(Load::Latency, 0.0), (Load::TokensPerMinute, 100.0)] {
        let requests = Requests { waiting: 2.0, running: 8.0, finished: 7.0, tokens };
        assert_eq!(scrape(&finished, load).requests, Some(requests), "{load:?}");
        let without = finished.replace("tgi_queue_size", "other");
        assert_eq!(scrape(&without, load).requests, None, "the value can be used without them");
    }
}

#[test]
fn an_engine_that_has_served_nothing_yet_counts_what_it_has_in_hand() {
    let text = SGLANG.lines().filter(|line| line.contains("_reqs")).collect::<Vec<_>>().join("\n");
    for load in [Load::Latency, Load::TokensPerMinute] {
        let Scrape { value, requests } = scrape(&text, load);
        assert!(matches!(value, Err(Fault::NoSuchMetric { .. })), "{value:?}");
        assert_eq!(requests, queue(3.0, 4.0, 0.0).requests, "{load:?}");
    }
}

#[test]
fn arrivals_are_looked_for_where_an_engine_may_count_them() {
    let of_engine = |engine, load| Wanted::OfEngine(engine, load).may_count_requests();
    for engine in [None, Some(Engine::Vllm), Some(Engine::Sglang), Some(Engine::Tgi)] {
        for load in [Load::QueueDepth, Load::Latency, Load::TokensPerMinute] {
            assert!(of_engine(engine, load), "{engine:?}");
        }
    }
    assert!(!of_engine(Some(Engine::Triton), Load::QueueDepth), "it does not say what it executes");
    assert!(!Wanted::Named("queue".to_owned(), Meaning::Level).may_count_requests());
}

#[test]
fn ranks_of_one_replica_count_once_and_replicas_add_up() {
    assert_eq!(scrape(SGLANG, Load::QueueDepth), queue(3.0, 4.0, 0.0));
    let replicas = SGLANG.replace("tp_rank=\"1\"", "dp_rank=\"1\",tp_rank=\"1\"");
    assert_eq!(scrape(&replicas, Load::QueueDepth), queue(3.0, 8.0, 0.0));
}

#[test]
fn a_gauge_with_too_many_sets_of_labels_is_refused() {
    let with = |models: usize| -> String {
        let waiting = |model| format!("vllm:num_requests_waiting{{model_name=\"{model}\"}} 1\n");
        format!("vllm:num_requests_running 0\n{}", (0..models).map(waiting).collect::<String>())
    };
    assert_eq!(scrape(&with(MOST_OF_GAUGE), Load::QueueDepth), queue(MOST_OF_GAUGE as f64, 0.0, 0.0));
    let metric = "vllm:num_requests_waiting".to_owned();
    let refused = Fault::TooManyLabelSets { pod: "demo/a".into(), metric, limit: MOST_OF_GAUGE };
    assert_eq!(of(&with(MOST_OF_GAUGE + 1), Load::QueueDepth), Err(refused));
}

#[test]
fn tokens_are_those_of_prompts_and_answers() {
    for (text, tokens) in [(VLLM, 42_422_665.0), (SGLANG, 100.0), (TGI, 100.0)] {
        assert_eq!(of(text, Load::TokensPerMinute), Ok(Scraped::Count(tokens)), "{text}");
    }
}

#[test]
fn latency_is_a_histogram_in_seconds() {
    for text in [VLLM, SGLANG, TGI] {
        assert!(matches!(of(text, Load::Latency), Ok(Scraped::Times(_, SECONDS, InFlight::Some))), "{text}");
    }
}

#[test]
fn what_triton_does_not_serve_is_said_with_what_to_use() {
    for load in [Load::Latency, Load::TokensPerMinute] {
        let fault = of(TRITON, load).unwrap_err();
        assert!(fault.to_string().starts_with("Triton does not serve its"), "{fault}");
        assert!(fault.to_string().contains("use queue_depth"), "{fault}");
    }
}

#[test]
fn triton_with_the_back_end_of_vllm_is_triton() {
    let both = format!("{VLLM}{TRITON}");
    assert_eq!(of(&both, Load::QueueDepth), Ok(Scraped::Level(7.0)));
}

#[test]
fn a_missing_gauge_is_a_fault_and_not_zero() {
    let half = VLLM.replace("vllm:num_requests_running", "vllm:num_requests_run");
    let fault = of(&half, Load::QueueDepth).unwrap_err();
    let metric = "vllm:num_requests_running".to_owned();
    assert_eq!(fault, Fault::NoSuchMetric { pod: "demo/a".into(), metric, similar: Vec::new() });
    assert_eq!(of("up 1\n", Load::QueueDepth), Err(Fault::UnknownEngine { pod: "demo/a".into() }));
}

#[test]
fn an_engine_that_is_known_by_its_label_is_not_guessed() {
    let wanted = Wanted::OfEngine(Engine::named("vllm"), Load::QueueDepth);
    let fault = read(&parse("up 1\n", |name| wanted.needs(name)), &wanted, "demo/a").value.unwrap_err();
    assert!(matches!(fault, Fault::NoSuchMetric { .. }), "{fault}");
    assert_eq!(Engine::named("other"), None);
}

#[test]
fn values_that_are_not_finite_are_faults() {
    let nan = VLLM.replace("} 5.0", "} NaN");
    assert!(matches!(of(&nan, Load::QueueDepth), Err(Fault::Server(ServerFault::NotANumber { .. }))));
    let infinite = VLLM.replace("} 5.0", "} -Inf");
    assert!(matches!(
        of(&infinite, Load::QueueDepth),
        Err(Fault::Server(ServerFault::Infinite { is_negative: true, .. }))
    ));
    for rank in ["tp_rank=\"0\"} 4.0", "tp_rank=\"1\"} 4.0"] {
        let ranks = SGLANG.replace(rank, &rank.replace("4.0", "NaN"));
        assert!(
            matches!(of(&ranks, Load::QueueDepth), Err(Fault::Server(ServerFault::NotANumber { .. }))),
            "{rank}"
        );
    }
}

#[test]
fn a_named_gauge_is_summed_over_its_series() {
    assert_eq!(of_name(VLLM, "vllm:num_requests_waiting", Meaning::Level), Ok(Scraped::Level(5.0)));
    assert_eq!(of_name("a 1\na{b=\"c\"} 2\n", "a", Meaning::Level), Ok(Scraped::Level(3.0)));
}

#[test]
fn a_counter_where_a_gauge_was_meant_is_a_fault() {
    for (text, name) in
        [(VLLM, "vllm:prompt_tokens_total"), ("a_total 5\n", "a_total"), ("# TYPE a counter\na 5\n", "a")]
    {
        let fault = of_name(text, name, Meaning::Level).unwrap_err();
        assert!(
            matches!(fault, Fault::WrongKind { found: Kind::Counter, wanted: WantedKind::Gauge, .. }),
            "{fault}"
        );
    }
    let latency = "vllm:e2e_request_latency_seconds";
    let fault = of_name(VLLM, latency, Meaning::Level).unwrap_err();
    assert!(matches!(fault, Fault::WrongKind { found: Kind::Histogram, .. }), "{fault}");
}

#[test]
fn a_named_counter_gives_a_rate_and_a_named_histogram_a_percentile() {
    assert_eq!(of_name(VLLM, "vllm:prompt_tokens_total", Meaning::PerMinute), Ok(Scraped::Count(1_000.0)));
    assert_eq!(of_name(TGI, "tgi_request_input_length_sum", Meaning::PerMinute), Ok(Scraped::Count(30.0)));
    assert_eq!(of_name("rate 5\n", "rate", Meaning::PerMinute), Ok(Scraped::Level(5.0)));
    for (name, factor) in [("a", 1_000.0), ("a_seconds", 1_000.0), ("a_ms", 1.0), ("a_us", 0.001)] {
        let text = format!("{name}_bucket{{le=\"1\"}} 1\n{name}_bucket{{le=\"+Inf\"}} 1\n");
        let found = of_name(&text, name, Meaning::P95Milliseconds);
        assert!(
            matches!(found, Ok(Scraped::Times(_, MillisecondsPerUnit(f), InFlight::Unknown)) if f == factor),
            "{name}: {found:?}"
        );
    }
    assert_eq!(of_name("p95 120\n", "p95", Meaning::P95Milliseconds), Ok(Scraped::Level(120.0)));
}

#[test]
fn a_metric_that_is_not_served_is_a_fault() {
    let fault = of_name("queue_depths 1\n", "queue_depth", Meaning::Level).unwrap_err();
    assert!(matches!(&fault, Fault::NoSuchMetric { metric, .. } if metric == "queue_depth"), "{fault}");
}

#[test]
fn an_engine_without_requests_in_hand_says_so_beside_its_latency() {
    let idle = VLLM
        .replace("} 3.0", "} 0.0")
        .replace("} 5.0", "} 0.0")
        .replace("m\"} 1.0\n# TYPE", "m\"} 0.0\n# TYPE");
    assert!(matches!(of(&idle, Load::Latency), Ok(Scraped::Times(_, _, InFlight::None))), "{idle}");
    let without = idle.replace("vllm:num_requests_waiting{", "vllm:other{");
    assert!(matches!(of(&without, Load::Latency), Ok(Scraped::Times(_, _, InFlight::Unknown))));
}
