//! Replicas by what arrives.

use scaling::flow::Flow;

use super::*;

/// Requests of 5 s each, of which a replica works on 8 at a time; of what is in hand, so many wait.
fn with_arrivals(rate: i64, running: i64, waiting: i64, seconds: i64) -> Answer {
    let flow = Flow {
        rate: Milli::units(rate),
        recent_rate: Milli::units(rate),
        takes: Milli::units(5),
        at_a_time: Milli::units(8),
        is_full: true,
        is_rough: false,
        dispersion: Milli::units(1),
        waiting: Milli::units(waiting),
        running: Milli::units(running),
        ..Flow::default()
    };
    let total = Reading::Total { value: Milli::units(running + waiting), at: at(seconds) };
    Answer { flow: Some(flow), ..Answer::new(total, String::new()) }
}

#[test]
fn the_event_and_the_condition_say_that_what_arrives_has_decided() {
    let mut world = World::new("", 2);
    world.looks(0, with_arrivals(4, 10, 0, 0));
    assert_eq!(world.written, [(0, 5)], "20 will be in hand and some more by chance");
    assert_eq!(
        world.events.iter().map(|event| event.message.as_str()).collect::<Vec<_>>(),
        [
            "Deployment chat: 2 to 5 replicas: queue_depth is 5 per replica, targetValue 5; 4.0 requests/s arrive and take \
             5.0 s, so 20 are in hand; with a margin for chance they need 5 replicas at 5 each, and 5 with what waits or \
             will wait (DesiredWithinRange)"
        ]
    );
    let (status, _, message) = world.condition("ScalingActive");
    assert_eq!(status, "True");
    assert_eq!(message, "replicas are computed from metric queue_depth, by what arrives");
    world.looks(15, queue_at(20.0, 15));
    assert_eq!(world.condition("ScalingActive").2, "replicas are computed from metric queue_depth");
}

#[test]
fn the_event_and_the_condition_say_that_a_value_asks_for_more_than_what_arrives() {
    let mut world = World::new("", 2);
    let Answer { flow, .. } = with_arrivals(1, 5, 0, 0);
    let rough = flow.map(|flow| Flow { is_rough: true, ..flow });
    world.looks(0, Answer { flow: rough, ..queue_at(20.0, 0) });
    assert_eq!(world.written, [(0, 4)], "20 for 5 each");
    let event = &world.events[0].message;
    assert!(event.contains("they need 2 replicas at 5 each, and 2 with what waits"), "{event}");
    assert!(event.ends_with("; the value asks for more (DesiredWithinRange)"), "{event}");
    let message = world.condition("ScalingActive").2;
    assert_eq!(
        message,
        "replicas are computed from metric queue_depth, whose value asks for more than what arrives"
    );
}

#[test]
fn numbers_of_arrivals_alone_write_no_status() {
    let mut world = World::new("", 5);
    world.looks(0, with_arrivals(4, 20, 0, 0));
    let before = world.status().clone();
    for seconds in (5..30).step_by(5) {
        world.looks(seconds, with_arrivals(4, 20 + seconds % 2, 0, seconds));
    }
    assert_eq!(*world.status(), before);
    assert!(world.written.is_empty(), "{:?}", world.written);
}

#[test]
fn the_ratio_leaves_arrivals_out() {
    let mut world = World::new(", algorithm: Ratio", 2);
    world.looks(0, with_arrivals(4, 10, 0, 0));
    assert!(world.written.is_empty(), "10 in hand are 5 for each of 2: {:?}", world.written);
    assert_eq!(world.condition("ScalingActive").2, "replicas are computed from metric queue_depth");
}

#[test]
fn the_condition_says_how_a_queue_of_prometheus_is_scaled_by_what_arrives() {
    let message = |source: &str| {
        let mut world = World::new(&format!(", source: {{prometheus: {{{source}}}}}"), 2);
        world.looks(0, queue_at(20.0, 0));
        world.condition("ScalingActive").2
    };
    assert_eq!(
        message("query: sum(a)"),
        "replicas are computed from metric queue_depth; set source.prometheus.completionsQuery to scale by what arrives; \
         query must then count requests that wait and that run"
    );
    assert_eq!(
        message("query: sum(a), completionsQuery: sum(b)"),
        "replicas are computed from metric queue_depth"
    );
}
