//! HPA v2's rules, transcribed from their description and from the behavior of `kube-controller-manager`, in floating
//! point and with complete lists, as it keeps them. Shares no code with the crate, so that both do not share a mistake.
//!
//! One known difference is left out. The controller forgets an event of one direction after the longest period of that
//! direction. A longer period of the other direction may still count the event.

use std::collections::BTreeMap;

/// What a HorizontalPodAutoscaler asks for.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) min: i32,
    pub(crate) max: i32,
    pub(crate) up: Direction,
    pub(crate) down: Direction,
}

#[derive(Clone, Debug)]
pub(crate) struct Direction {
    pub(crate) window_seconds: i64,
    pub(crate) select: &'static str,
    /// Type, value, seconds.
    pub(crate) policies: Vec<(&'static str, i32, i64)>,
    pub(crate) tolerance: f64,
}

/// In thousandths.
#[derive(Clone, Debug)]
pub(crate) enum MetricValue {
    ExternalAverageValue { usage: i64, target: i64 },
    ExternalValue { usage: i64, target: i64 },
    Pods { usage: BTreeMap<String, i64>, target: i64 },
    Failed,
}

#[derive(Clone, Debug)]
pub(crate) struct HpaPod {
    pub(crate) name: String,
    pub(crate) phase: &'static str,
    pub(crate) ready: bool,
    pub(crate) deleted: bool,
}

/// The maps of the controller, for one object. Times in seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hpa {
    recommendations: Vec<(i64, i32)>,
    pub(crate) ups: Vec<(i64, i32)>,
    pub(crate) downs: Vec<(i64, i32)>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) replicas: i32,
    /// Reasons of AbleToScale and ScalingLimited, if they were set.
    pub(crate) able: Option<&'static str>,
    pub(crate) limited: Option<&'static str>,
}

pub(crate) struct Scale<'a> {
    pub(crate) spec_replicas: i32,
    pub(crate) status_replicas: i32,
    pub(crate) pods: &'a [HpaPod],
}

impl Hpa {
    /// One pass of `reconcileAutoscaler`, including the write of the scale.
    pub(crate) fn reconcile(
        &mut self,
        spec: &Spec,
        scale: &Scale<'_>,
        metrics: &[MetricValue],
        now: i64,
    ) -> Verdict {
        let current = scale.spec_replicas;
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
        let quiet = |replicas| Verdict { replicas, able: None, limited: None };
        let verdict = if current == 0 && spec.min != 0 {
            return quiet(0);
        } else if current > spec.max {
            quiet(spec.max)
        } else if current < spec.min {
            quiet(spec.min)
        } else {
            let mut best = 0;
            let mut failed = 0;
            for metric in metrics {
                match propose(spec, scale, metric) {
                    Some(proposal) => best = best.max(proposal),
                    None => failed += 1,
                }
            }
            if failed == metrics.len() || (failed > 0 && best < current) {
                return quiet(current);
            }
            self.normalize(spec, current, best, now)
        };
        if verdict.replicas > current {
            self.ups.push((now, verdict.replicas - current));
        } else if verdict.replicas < current {
            self.downs.push((now, current - verdict.replicas));
        }
        verdict
    }

    fn normalize(&mut self, spec: &Spec, current: i32, desired: i32, now: i64) -> Verdict {
        let (mut up, mut down) = (desired, desired);
        for &(time, replicas) in &self.recommendations {
            if time > now - spec.up.window_seconds {
                up = up.min(replicas);
            }
            if time > now - spec.down.window_seconds {
                down = down.max(replicas);
            }
        }
        let mut stable = current;
        if stable < up {
            stable = up;
        }
        if stable > down {
            stable = down;
        }
        self.recommendations.push((now, desired));
        let able = if stable == desired {
            "ReadyForNewScale"
        } else if desired >= current {
            "ScaleUpStabilized"
        } else {
            "ScaleDownStabilized"
        };
        let (replicas, limited) = self.rate(spec, current, stable, now);
        Verdict { replicas, able: Some(able), limited: Some(limited) }
    }

    fn rate(&self, spec: &Spec, current: i32, desired: i32, now: i64) -> (i32, &'static str) {
        if desired > current {
            let limit = self.up_limit(&spec.up, current, now).max(current);
            let (most, reason) =
                if spec.max > limit { (limit, "ScaleUpLimit") } else { (spec.max, "TooManyReplicas") };
            if desired > most {
                return (most, reason);
            }
        }
        if desired < current {
            let limit = self.down_limit(&spec.down, current, now).min(current);
            let (least, reason) =
                if spec.min < limit { (limit, "ScaleDownLimit") } else { (spec.min, "TooFewReplicas") };
            if desired < least {
                return (least, reason);
            }
        }
        (desired, "DesiredWithinRange")
    }

    fn period_start(&self, current: i32, seconds: i64, now: i64) -> i32 {
        let sum = |events: &[(i64, i32)]| -> i32 {
            events.iter().filter(|(time, _)| *time > now - seconds).map(|(_, change)| *change).sum()
        };
        current - sum(&self.ups) + sum(&self.downs)
    }

    pub(crate) fn up_limit(&self, direction: &Direction, current: i32, now: i64) -> i32 {
        let mut result = match direction.select {
            "Disabled" => return current,
            "Min" => i32::MAX,
            _ => i32::MIN,
        };
        for &(kind, value, seconds) in &direction.policies {
            let start = self.period_start(current, seconds, now);
            let proposed = match kind {
                "Pods" => start + value,
                _ => (f64::from(start) * (1.0 + f64::from(value) / 100.0)).ceil() as i32,
            };
            result = if direction.select == "Min" { result.min(proposed) } else { result.max(proposed) };
        }
        result
    }

    pub(crate) fn down_limit(&self, direction: &Direction, current: i32, now: i64) -> i32 {
        let mut result = match direction.select {
            "Disabled" => return current,
            "Min" => i32::MIN,
            _ => i32::MAX,
        };
        for &(kind, value, seconds) in &direction.policies {
            let start = self.period_start(current, seconds, now);
            let proposed = match kind {
                "Pods" => start - value,
                _ => (f64::from(start) * (1.0 - f64::from(value) / 100.0)) as i32,
            };
            result = if direction.select == "Min" { result.max(proposed) } else { result.min(proposed) };
        }
        result
    }
}

fn propose(spec: &Spec, scale: &Scale<'_>, metric: &MetricValue) -> Option<i32> {
    let within = |ratio: f64| (1.0 - spec.down.tolerance) <= ratio && ratio <= (1.0 + spec.up.tolerance);
    match metric {
        MetricValue::Failed => None,
        MetricValue::ExternalAverageValue { usage, target } => {
            let status = scale.status_replicas;
            let ratio = *usage as f64 / (*target as f64 * f64::from(status));
            Some(if within(ratio) { status } else { to_int((*usage as f64 / *target as f64).ceil()) })
        }
        MetricValue::ExternalValue { usage, target } => {
            let ratio = *usage as f64 / *target as f64;
            if scale.spec_replicas == 0 {
                return Some(to_int(ratio.ceil()));
            }
            if within(ratio) {
                return Some(scale.spec_replicas);
            }
            // `getReadyPodsCount` fails.
            if scale.pods.is_empty() {
                return None;
            }
            let ready = scale.pods.iter().filter(|pod| {
                // The crate counts pods that are being deleted as gone; the controller counts them here while Ready.
                pod.phase == "Running" && pod.ready && !pod.deleted
            });
            Some(to_int((ratio * ready.count() as f64).ceil()))
        }
        MetricValue::Pods { usage, target } => pods_metric(&within, scale, usage, *target),
    }
}

fn pods_metric(
    within: &dyn Fn(f64) -> bool,
    scale: &Scale<'_>,
    usage: &BTreeMap<String, i64>,
    target: i64,
) -> Option<i32> {
    let current = scale.spec_replicas;
    let mut metrics = usage.clone();
    let (mut unready, mut missing, mut counted) = (Vec::new(), Vec::new(), 0);
    for pod in scale.pods {
        if pod.deleted || pod.phase == "Failed" {
            metrics.remove(&pod.name);
        } else if pod.phase == "Pending" {
            metrics.remove(&pod.name);
            unready.push(&pod.name);
        } else if usage.contains_key(&pod.name) {
            counted += 1;
        } else {
            missing.push(&pod.name);
        }
    }
    if metrics.is_empty() {
        return None;
    }
    let ratio_of = |metrics: &BTreeMap<String, i64>| {
        let average = metrics.values().sum::<i64>() / metrics.len() as i64;
        average as f64 / target as f64
    };
    let ratio = ratio_of(&metrics);
    let with_unready = !unready.is_empty() && ratio > 1.0;
    if !with_unready && missing.is_empty() {
        return Some(if within(ratio) { current } else { to_int((ratio * f64::from(counted)).ceil()) });
    }
    for name in missing {
        if ratio < 1.0 {
            metrics.insert(name.clone(), target);
        } else if ratio > 1.0 {
            metrics.insert(name.clone(), 0);
        }
    }
    if with_unready {
        for name in unready {
            metrics.insert(name.clone(), 0);
        }
    }
    let new_ratio = ratio_of(&metrics);
    let turned = (ratio < 1.0 && new_ratio > 1.0) || (ratio > 1.0 && new_ratio < 1.0);
    if within(new_ratio) || turned {
        return Some(current);
    }
    let replicas = to_int((new_ratio * metrics.len() as f64).ceil());
    let against = (new_ratio < 1.0 && replicas > current) || (new_ratio > 1.0 && replicas < current);
    Some(if against { current } else { replicas })
}

/// The largest integer instead of an overflow.
fn to_int(value: f64) -> i32 {
    if value > f64::from(i32::MAX) { i32::MAX } else { value as i32 }
}
