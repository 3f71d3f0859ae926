//! When a pod counts as started, ready and alive, and how long it may take to go: arithmetic in seconds.

use k8s_openapi::{
    api::core::v1::{HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::engine::{Drain, Profile};

/// Until every proxy has heard that the pod goes, and sends it nothing new; the engine still serves.
pub(super) const PRE_STOP_SECONDS: i64 = 10;
/// Beyond the engine's own drain, for what it does after it.
const MARGIN_SECONDS: i64 = 10;

const STARTUP_PERIOD: i32 = 5;
const READINESS_PERIOD: i32 = 5;
const LIVENESS_PERIOD: i32 = 10;
/// A busy engine answers late; that alone must not take it out or kill it.
const PROBE_TIMEOUT: i32 = 5;
/// A minute of silence.
const LIVENESS_FAILURES: i32 = 6;
const READINESS_FAILURES: i32 = 3;

/// Whether a warm-up has taken too long is decided by us, from the cache. The kubelet would restart the engine and so
/// hide what happened; its budget is longer, so that it only comes when we do not.
pub(super) fn startup(profile: &Profile, warmup_timeout_seconds: i32) -> Probe {
    probe(profile.health.ready, STARTUP_PERIOD, startup_failures(warmup_timeout_seconds))
}

pub(super) fn readiness(profile: &Profile) -> Probe {
    probe(profile.health.ready, READINESS_PERIOD, READINESS_FAILURES)
}

pub(super) fn liveness(profile: &Profile) -> Probe {
    probe(profile.health.live, LIVENESS_PERIOD, LIVENESS_FAILURES)
}

/// From the first word of going to the kill.
pub(super) fn grace_seconds(drain: &Drain) -> i64 {
    PRE_STOP_SECONDS + drain.seconds + MARGIN_SECONDS
}

/// The first probe may come at once, so `n` failures are over after `n - 1` periods; that must be a period more than
/// the timeout.
fn startup_failures(warmup_timeout_seconds: i32) -> i32 {
    let periods =
        (i64::from(warmup_timeout_seconds) + i64::from(STARTUP_PERIOD) - 1) / i64::from(STARTUP_PERIOD);
    i32::try_from(periods + 2).unwrap_or(i32::MAX)
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("http".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(PROBE_TIMEOUT),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

#[cfg(test)]
mod tests {
    use api::aiinference::Engine;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_kubelet_never_ends_a_warm_up_before_we_do(timeout in 10..=86_400) {
            let failures = startup_failures(timeout);
            let earliest_kill = STARTUP_PERIOD * (failures - 1);
            prop_assert!(earliest_kill >= timeout + STARTUP_PERIOD);
            prop_assert!(STARTUP_PERIOD * failures < timeout + 3 * STARTUP_PERIOD);
        }

        #[test]
        fn an_engine_is_never_killed_while_it_drains(seconds in 0_i64..100_000) {
            let drain = Drain { seconds };
            prop_assert!(grace_seconds(&drain) > PRE_STOP_SECONDS + seconds);
        }
    }

    #[test]
    fn every_profile_has_more_grace_than_it_drains() {
        for engine in Engine::ALL {
            let drain = &Profile::newest(engine).drain;
            assert!(grace_seconds(drain) > PRE_STOP_SECONDS + drain.seconds);
        }
    }
}
