//! Startup, readiness and liveness probes, and the termination grace period.

use k8s_openapi::{
    api::core::v1::{ExecAction, HTTPGetAction, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::volumes::PROGRAM_PATH;
use crate::engine::{HOME, HTTP_PORT, Life, Profile};

/// Time for kube-proxies and gateways to remove the pod from their backends; the engine still serves.
pub(super) const PRE_STOP_SECONDS: i64 = 10;
/// Time for the engine to exit after its drain.
const MARGIN_SECONDS: i64 = 10;

const STARTUP_PERIOD: i32 = 5;
const READINESS_PERIOD: i32 = 5;
const LIVENESS_PERIOD: i32 = 10;
/// A busy engine answers slowly, which must not fail its probes.
const PROBE_TIMEOUT: i32 = 5;
/// One minute.
const LIVENESS_FAILURES: i32 = 6;
const READINESS_FAILURES: i32 = 3;
/// With the preStop hook.
const STALLED_GRACE_SECONDS: i64 = 30;

/// The controller reports a warm-up timeout before the kubelet restarts the engine: the probe allows two periods more than
/// `warmupTimeoutSeconds`.
pub(super) fn startup(profile: &Profile, warmup_timeout_seconds: i32) -> Probe {
    probe(profile.health.ready, STARTUP_PERIOD, startup_failures(warmup_timeout_seconds))
}

pub(super) fn readiness(profile: &Profile) -> Probe {
    probe(profile.health.ready, READINESS_PERIOD, READINESS_FAILURES)
}

/// With `stall_seconds`, the probe runs `model-transfer alive`, which reads health and metrics. Otherwise it requests the
/// health path.
pub(super) fn liveness(profile: &Profile, stall_seconds: Option<i32>) -> Probe {
    let by_path = probe(profile.health.live, LIVENESS_PERIOD, LIVENESS_FAILURES);
    let Some((life, seconds)) = profile.life.as_ref().zip(stall_seconds) else { return by_path };
    Probe {
        http_get: None,
        exec: Some(ExecAction { command: Some(alive(profile, life, seconds)) }),
        timeout_seconds: Some(LIVENESS_PERIOD),
        // A drain would wait for requests that never end.
        termination_grace_period_seconds: Some(STALLED_GRACE_SECONDS),
        ..by_path
    }
}

fn alive(profile: &Profile, life: &Life, stall_seconds: i32) -> Vec<String> {
    let moves = life.moves.iter().map(|name| format!("--moves={name}"));
    [
        format!("{PROGRAM_PATH}/model-transfer"),
        "alive".to_owned(),
        format!("--port={HTTP_PORT}"),
        format!("--path={}", profile.health.live),
        format!("--metrics-path={}", profile.metrics.path),
        format!("--stall-after-seconds={stall_seconds}"),
        format!("--state={HOME}/.alive"),
        format!("--running={}", life.running),
    ]
    .into_iter()
    .chain(moves)
    .collect()
}

/// `terminationGracePeriodSeconds`.
pub(super) fn grace_seconds(drain_seconds: i64) -> i64 {
    PRE_STOP_SECONDS + drain_seconds + MARGIN_SECONDS
}

/// The first probe may run at once, so `n` failures take at least `n - 1` periods, which must exceed the timeout by a period.
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_startup_probe_fails_later_than_the_warm_up_timeout(timeout in 10..=86_400) {
            let failures = startup_failures(timeout);
            let earliest_kill = STARTUP_PERIOD * (failures - 1);
            prop_assert!(earliest_kill >= timeout + STARTUP_PERIOD);
            prop_assert!(STARTUP_PERIOD * failures < timeout + 3 * STARTUP_PERIOD);
        }

        #[test]
        fn an_engine_is_never_killed_while_it_drains(seconds in 0_i64..100_000) {
            prop_assert!(grace_seconds(seconds) > PRE_STOP_SECONDS + seconds);
        }
    }
}
