//! The scaling fields that AIScaler and AIDispatcher share, as values of this crate.

use std::time::Duration;

use crate::{
    behavior::{Behavior, Change, InvalidBehavior, Rate, Rules, Select, Tolerance, Window},
    policy::{InvalidPolicy, TargetValue},
    reading::Milli,
};
use api::aiscaler as spec;

/// HPA's defaults fill what the spec leaves open.
pub fn behavior(spec: Option<&spec::Behavior>) -> Result<Behavior, InvalidBehavior> {
    let default = Behavior::default();
    let Some(spec) = spec else { return Ok(default) };
    Ok(Behavior {
        up: rules(spec.scale_up.as_ref(), default.up)?,
        down: rules(spec.scale_down.as_ref(), default.down)?,
    })
}

fn rules(spec: Option<&spec::ScalingRules>, default: Rules) -> Result<Rules, InvalidBehavior> {
    let Some(spec) = spec else { return Ok(default) };
    let window = spec.stabilization_window_seconds.map(|length| Window::new(seconds(length))).transpose()?;
    let rates: Result<Vec<Rate>, InvalidBehavior> = spec
        .policies
        .iter()
        .map(|policy| {
            let value = u32::try_from(policy.value).unwrap_or_default();
            let change = match policy.unit {
                spec::PolicyUnit::Pods => Change::Pods(value),
                spec::PolicyUnit::Percent => Change::Percent(value),
            };
            Rate::new(change, seconds(policy.period_seconds))
        })
        .collect();
    let rates = rates?;
    Ok(Rules {
        window: window.unwrap_or(default.window),
        select: match spec.select_policy {
            spec::SelectPolicy::Max => Select::Max,
            spec::SelectPolicy::Min => Select::Min,
            spec::SelectPolicy::Disabled => Select::Disabled,
        },
        rates: if rates.is_empty() { default.rates } else { rates },
        tolerance: match &spec.tolerance {
            Some(tolerance) => Tolerance::parse(ratio(&tolerance.0))?,
            None => default.tolerance,
        },
    })
}

/// A quantity such as `5` or `800m`, rounded to thousandths.
pub fn target_value(text: &str) -> Result<TargetValue, InvalidPolicy> {
    let value = Milli::parse(ratio(text)).map_err(|_| InvalidPolicy::TargetValue)?;
    TargetValue::try_from(value)
}

/// NaN, which no tolerance is, if it is no quantity.
fn ratio(text: &str) -> f64 {
    text::quantity::ratio(text).unwrap_or(f64::NAN)
}

fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_any_quantity_of_thousandths() {
        for (text, milli) in [
            ("5", 5_000),
            ("800m", 800),
            ("0.8", 800),
            ("1m", 1),
            ("1500m", 1_500),
            ("0.0016", 2),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("1000000000000", 1_000_000_000_000_000),
            ("1T", 1_000_000_000_000_000),
        ] {
            assert_eq!(target_value(text).map(|target| target.milli().count()), Ok(milli), "{text}");
        }
        for text in ["0", "0m", "400u", "-1", "", "five", "5 m"] {
            assert_eq!(target_value(text), Err(InvalidPolicy::TargetValue), "{text}");
        }
    }

    #[test]
    fn fields_that_are_not_set_are_the_defaults() {
        let spec = serde_saphyr::from_str("{scaleDown: {stabilizationWindowSeconds: 7}}").unwrap();
        let behavior = super::behavior(Some(&spec)).unwrap();
        assert_eq!(behavior.up, Behavior::default().up);
        assert_eq!(behavior.down.window.duration(), Duration::from_secs(7));
        assert_eq!(behavior.down.rates, Behavior::default().down.rates);
    }

    #[test]
    fn a_value_out_of_range_is_refused() {
        let spec =
            serde_saphyr::from_str("{scaleUp: {policies: [{type: Pods, value: 0, periodSeconds: 15}]}}")
                .unwrap();
        assert!(super::behavior(Some(&spec)).is_err());
    }
}
