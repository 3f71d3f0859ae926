//! Figures, their goals, and the table in which they are printed. Knows nothing of what was measured.

pub(crate) mod repeats;

/// One line of a table.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: f64,
    /// The same of a program that does the least that must be done.
    pub(super) beside: Option<f64>,
    pub(super) goal: Option<Goal>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Figure {
    pub(super) fn new(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value, beside: None, goal: None }
    }

    pub(super) fn beside(self, null: f64) -> Self {
        Self { beside: Some(null), ..self }
    }

    pub(super) fn at_most(self, goal: f64) -> Self {
        Self { goal: Some(Goal::AtMost(goal)), ..self }
    }

    pub(super) fn at_least(self, goal: f64) -> Self {
        Self { goal: Some(Goal::AtLeast(goal)), ..self }
    }
}

impl Goal {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(goal) => value >= goal,
            Self::AtMost(goal) => value <= goal,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::AtLeast(goal) => format!(">= {}", shown(goal)),
            Self::AtMost(goal) => format!("<= {}", shown(goal)),
        }
    }
}

/// The figures as lines of text, in columns.
pub(super) fn table(title: &str, figures: &[Figure]) -> String {
    let mut lines =
        vec![format!("{title:<62} {:>10} {:>12} {:>10}  {}", "MEASURED", "NULL", "GOAL", "VERDICT")];
    for Figure { name, value, beside, goal } in figures {
        let verdict = goal.map_or("", |goal| if goal.is_met_by(*value) { "ok" } else { "MISSED" });
        let goal = goal.map(Goal::shown).unwrap_or_default();
        let beside = beside.map(shown).unwrap_or_default();
        lines.push(format!("{name:<62} {:>10} {beside:>12} {goal:>10}  {verdict}", shown(*value)));
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// The median of each figure over several runs that have the same figures.
pub(super) fn medians(runs: &[Vec<Figure>]) -> Vec<Figure> {
    let Some(first) = runs.first() else { return Vec::new() };
    let over_runs = |of: &dyn Fn(&Vec<Figure>) -> Option<f64>| -> Option<f64> {
        median(runs.iter().filter_map(of).collect())
    };
    first
        .iter()
        .enumerate()
        .map(|(at, figure)| Figure {
            value: over_runs(&|run| run.get(at).map(|figure| figure.value)).unwrap_or(figure.value),
            beside: over_runs(&|run| run.get(at)?.beside),
            ..figure.clone()
        })
        .collect()
}

/// Of an even number of values, the middle between the two in the middle: a run is not chosen for being the better one.
fn median(values: Vec<f64>) -> Option<f64> {
    let negated = values.iter().map(|value| -value).collect();
    Some((percentile(values, 0.5)? - percentile(negated, 0.5)?) / 2.0)
}

/// The smallest value that this share of all values does not exceed; `None` of nothing.
pub(super) fn percentile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied()
}

/// With which power of x the values grow: the slope of a straight line through the logarithms.
pub(super) fn exponent(points: &[(f64, f64)]) -> f64 {
    let logarithms: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = logarithms.len() as f64;
    let mean_x = logarithms.iter().map(|(x, _)| x).sum::<f64>() / count;
    let mean_y = logarithms.iter().map(|(_, y)| y).sum::<f64>() / count;
    let together: f64 = logarithms.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let spread: f64 = logarithms.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    together / spread
}

/// Three digits say enough, and whole numbers stay whole.
fn shown(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(values.clone(), 0.5), Some(50.0));
        assert_eq!(percentile(values, 0.99), Some(99.0));
        assert_eq!(percentile(vec![7.0], 0.99), Some(7.0));
        assert_eq!(percentile(Vec::new(), 0.5), None);
    }

    #[test]
    fn the_exponent_is_that_of_the_power() {
        let points: Vec<(f64, f64)> = [100.0, 300.0, 1000.0_f64].map(|x| (x, 0.3 * x.powf(1.2))).to_vec();
        assert!((exponent(&points) - 1.2).abs() < 1e-9);
    }

    #[test]
    fn a_figure_that_misses_its_goal_says_so() {
        let figures = [Figure::new("met", 5.0).at_most(5.0), Figure::new("not met", 0.84).at_least(0.85)];
        let table = table("", &figures);
        assert!(table.lines().nth(1).unwrap().ends_with("ok"), "{table}");
        assert!(table.lines().nth(2).unwrap().ends_with("MISSED"), "{table}");
    }

    #[test]
    fn of_several_runs_the_median_counts() {
        let run = |value: f64| vec![Figure::new("x", value).beside(value * 2.0)];
        let median = medians(&[run(1.0), run(9.0), run(2.0)]);
        assert_eq!((median[0].value, median[0].beside), (2.0, Some(4.0)));
    }
}
