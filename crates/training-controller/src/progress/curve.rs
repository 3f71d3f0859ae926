//! The loss over a whole run, thinned evenly: at most 64 points, however long it is. Pure.

use std::collections::BTreeMap;

use api::trainingjob::LossPoint;

/// Points by step. When there are too many, every second one is left out, so that those that stay are equally far apart.
#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    points: BTreeMap<i64, String>,
    /// Only steps that are at least so far from the point before are kept.
    stride: i64,
    /// The last step that was added, which is shown also if it is nearer.
    last: Option<(i64, String)>,
}

const MOST_POINTS: usize = 64;

impl Curve {
    pub(super) fn of(points: &[LossPoint]) -> Self {
        let mut curve = Self::default();
        // Those of the status are at least as far apart as their stride was; the last one may be nearer.
        let kept: Vec<i64> = points.iter().rev().skip(1).map(|point| point.step).collect();
        curve.stride = kept.windows(2).map(|pair| pair[0] - pair[1]).min().unwrap_or_default();
        for point in points {
            curve.add(point.step, &point.loss);
        }
        curve
    }

    /// A run that resumes repeats steps: what an earlier one said of this and later steps does not count any more.
    pub(super) fn add(&mut self, step: i64, loss: &str) {
        self.points.split_off(&step);
        self.last = Some((step, loss.to_owned()));
        let before = self.points.last_key_value().map(|(before, _)| *before);
        if before.is_none_or(|before| step.saturating_sub(before) >= self.stride) {
            self.points.insert(step, loss.to_owned());
        }
        // One place is kept for the last step.
        if self.points.len() >= MOST_POINTS {
            self.thin();
        }
    }

    pub(super) fn points(&self) -> Vec<LossPoint> {
        let last = self.last.as_ref().filter(|(step, _)| !self.points.contains_key(step));
        let all = self.points.iter().chain(last.map(|(step, loss)| (step, loss)));
        all.map(|(step, loss)| LossPoint { step: *step, loss: loss.clone() }).collect()
    }

    fn thin(&mut self) {
        let mut index = 0_usize;
        self.points.retain(|_, _| {
            index += 1;
            index % 2 == 1
        });
        let steps: Vec<i64> = self.points.keys().copied().collect();
        self.stride = steps.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps(curve: &Curve) -> Vec<i64> {
        curve.points().iter().map(|point| point.step).collect()
    }

    #[test]
    fn few_points_are_all_kept() {
        let mut curve = Curve::default();
        for step in [1, 5, 10, 15] {
            curve.add(step, "0.5");
        }
        assert_eq!(steps(&curve), [1, 5, 10, 15]);
    }

    #[test]
    fn a_restart_loses_no_point() {
        let mut curve = Curve::default();
        for step in [1, 5, 10, 15, 18] {
            curve.add(step, "0.5");
        }
        assert_eq!(steps(&Curve::of(&curve.points())), [1, 5, 10, 15, 18]);
    }

    #[test]
    fn a_resumed_run_replaces_what_it_repeats() {
        let mut curve = Curve::default();
        for step in [1, 5, 10, 15, 20] {
            curve.add(step, "old");
        }
        for step in [10, 15] {
            curve.add(step, "new");
        }
        let points: Vec<String> =
            curve.points().iter().map(|point| format!("{}:{}", point.step, point.loss)).collect();
        assert_eq!(points, ["1:old", "5:old", "10:new", "15:new"]);
    }

    proptest! {
        #[test]
        fn any_run_has_at_most_64_points_evenly_apart_and_its_first_and_last(
            count in 1_i64..5_000,
            every in 1_i64..50,
            restart in 0_i64..5_000,
        ) {
            let mut curve = Curve::default();
            for index in 0..count {
                if index == restart {
                    // The process restarts: only the status is left.
                    curve = Curve::of(&curve.points());
                }
                curve.add(1 + index * every, "1");
            }
            let steps = steps(&curve);
            prop_assert!(steps.len() <= MOST_POINTS, "{}", steps.len());
            prop_assert_eq!((steps[0], *steps.last().unwrap()), (1, 1 + (count - 1) * every));
            let mut distances: Vec<i64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
            distances.pop();
            if let (Some(least), Some(most)) = (distances.iter().min(), distances.iter().max()) {
                prop_assert!(*most <= 2 * *least, "{steps:?}");
            }
        }
    }
}
