//! A loss that is no number.

use api::{
    conditions, reasons,
    trainingjob::{Method, Phase},
};

use super::{LORA, World};
use crate::progress::Losses;

/// The log has steps with this loss and gradient, from the first to the last one.
fn logs(world: &mut World, steps: std::ops::RangeInclusive<i64>, loss: &str, gradient: Option<&str>) {
    let mut losses = world.log().losses;
    for step in steps {
        losses.note(&training_log::Step {
            position: training_log::Position { step, total: 1_000 },
            loss: Some(loss.to_owned()),
            gradient_norm: gradient.map(str::to_owned),
            learning_rate: None,
            epoch: None,
            seconds_per_step: None,
            remaining: None,
        });
    }
    world.log().losses = losses;
    world.settles();
}

fn is_reported(world: &World) -> bool {
    world.condition(conditions::LOSS_NOT_FINITE) == ("True", reasons::LOSS_NOT_FINITE)
}

#[test]
fn twenty_logged_steps_without_a_finite_loss_are_reported_once_and_the_training_goes_on() {
    let mut world = World::training(LORA);
    world.steps(1, 1_000);
    logs(&mut world, 1..=19, "NaN", None);
    assert!(!is_reported(&world));
    logs(&mut world, 20..=20, "Inf", None);
    assert!(is_reported(&world));
    let message = |world: &World| {
        let all = &world.status().conditions;
        all.iter().find(|known| known.type_ == conditions::LOSS_NOT_FINITE).unwrap().message.clone()
    };
    let words = message(&world);
    logs(&mut world, 21..=90, "NaN", None);
    assert_eq!((message(&world), world.phase()), (words, Phase::Running));
    assert_eq!(world.notes().iter().filter(|note| **note == reasons::LOSS_NOT_FINITE).count(), 1);
}

#[test]
fn a_sound_loss_ends_the_condition_and_a_log_that_is_read_anew_does_not() {
    let mut world = World::training(LORA);
    world.steps(1, 1_000);
    logs(&mut world, 1..=20, "NaN", None);
    world.log().losses = Losses::default();
    world.settles();
    assert!(is_reported(&world));
    logs(&mut world, 21..=22, "NaN", None);
    assert!(is_reported(&world));
    logs(&mut world, 23..=23, "0.5", None);
    assert_eq!(world.condition(conditions::LOSS_NOT_FINITE), ("absent", ""));
    assert_eq!(world.notes().iter().filter(|note| **note == reasons::LOSS_NOT_FINITE).count(), 1);
}

#[test]
fn a_loss_of_zero_is_none_unless_the_method_learns_it() {
    for (method, expected) in [
        (Method::Lora, true),
        (Method::Qlora, true),
        (Method::Full, true),
        (Method::Dpo, false),
        (Method::Ppo, false),
    ] {
        let mut world = World::training("{model: m, dataset: d, method: lora}");
        world.job().spec.method = method;
        world.job().spec.reward_model = (method == Method::Ppo).then(|| "r".to_owned());
        world.steps(1, 1_000);
        logs(&mut world, 1..=30, "0.0", None);
        assert_eq!(is_reported(&world), expected, "{method:?}");
        logs(&mut world, 31..=60, "0.0", Some("0.7"));
        assert!(!is_reported(&world), "it has a gradient");
        logs(&mut world, 61..=90, "0.0", Some("NaN"));
        assert!(is_reported(&world), "{method:?}");
    }
}

#[test]
fn with_fail_the_attempt_ends_and_counts_against_the_retry_limit() {
    let mut world = World::training("{model: m, dataset: d, method: lora, onNonFiniteLoss: Fail}");
    world.steps(1, 1_000);
    logs(&mut world, 1..=20, "NaN", None);
    assert_eq!((world.status().ended_attempts, world.status().retries), (1, 1));
    assert_eq!(world.failures(), [(reasons::LOSS_NOT_FINITE, 1)]);
    assert!(is_reported(&world), "it stays until a sound loss is logged");
}

/// The next attempt begins where the loss is no number already.
#[test]
fn checkpoints_without_a_finite_loss_are_no_progress() {
    let mut world = World::training("{model: m, dataset: d, method: lora, onNonFiniteLoss: Fail}");
    for attempt in 1..=4 {
        world.steps(attempt * 100, 1_000);
        world.saves(attempt * 100);
        logs(&mut world, attempt * 100..=attempt * 100 + 19, "NaN", None);
        if world.phase() == Phase::Failed {
            break;
        }
        world.pods_go();
        world.wakes();
        world.starts();
    }
    assert_eq!(world.outcome(), (Phase::Failed, reasons::RETRIES_EXHAUSTED));
}
