//! Panels of values over time, for pictures of demos. Pure.

use svg::Svg;

pub(crate) const WIDTH: f64 = 960.0;
pub(crate) const MARGIN: f64 = 24.0;
/// Where the axis of time begins, right of the numbers of the other axes, and where it ends.
pub(crate) const LEFT: f64 = 64.0;
pub(crate) const RIGHT: f64 = WIDTH - MARGIN;
/// A character of 12 px, on average.
pub(crate) const CHARACTER: f64 = 6.4;
/// Steps between two numbers of an axis: the smallest of which no more than this many fit.
const STEPS: [u32; 11] = [1, 2, 4, 5, 10, 20, 30, 50, 100, 200, 500];
const MOST_NUMBERS: f64 = 4.0;
const MOST_SECONDS: f64 = 10.0;

/// From seconds to pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    pub(crate) from: f64,
    pub(crate) until: f64,
}

impl Time {
    pub(crate) fn x(self, second: f64) -> f64 {
        LEFT + (second - self.from) / (self.until - self.from).max(1.0) * (RIGHT - LEFT)
    }
}

/// From values to pixels: one panel, with its baseline at `bottom`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) bottom: f64,
    pub(crate) height: f64,
    /// Values between two numbers.
    pub(crate) step: u32,
    /// The largest value, a multiple of the step.
    pub(crate) most: f64,
}

impl Scale {
    pub(crate) fn of(values: impl Iterator<Item = f64>, bottom: f64, height: f64) -> Self {
        let largest = values.fold(1.0, f64::max);
        let step = step(largest, MOST_NUMBERS);
        Self { bottom, height, step, most: (largest / f64::from(step)).ceil() * f64::from(step) }
    }

    pub(crate) fn y(self, value: f64) -> f64 {
        self.bottom - value / self.most * self.height
    }
}

/// The smallest step of which no more than so many fit.
fn step(largest: f64, most: f64) -> u32 {
    let fits = |step: &u32| largest / f64::from(*step) <= most;
    STEPS.into_iter().find(fits).unwrap_or(STEPS[STEPS.len() - 1])
}

/// The path of a value that changes at once and then stays, to the end of the picture.
pub(crate) fn stairs(values: &[(f64, f64)], time: Time, scale: Scale) -> String {
    stairs_until(time.until, values, time, scale)
}

/// As [`stairs`], to an earlier second.
pub(crate) fn stairs_until(until: f64, values: &[(f64, f64)], time: Time, scale: Scale) -> String {
    let mut path = String::new();
    let mut drawn = None;
    for &(second, value) in values {
        let (x, y) = (time.x(second), scale.y(value));
        match drawn {
            None => path.push_str(&format!("M{x:.1} {y:.1}")),
            Some(before) if before == value => {}
            Some(_) => path.push_str(&format!("H{x:.1}V{y:.1}")),
        }
        drawn = Some(value);
    }
    path + &format!("H{:.1}", time.x(until))
}

/// Title and numbers of one panel.
pub(crate) fn panel(svg: &mut Svg, scale: Scale, title: &str) {
    svg.text(MARGIN, scale.bottom - scale.height - 10.0, "strong", title);
    let values = (0..).map(|number| f64::from(number * scale.step));
    for value in values.take_while(|&value| value <= scale.most) {
        let y = scale.y(value);
        svg.line(format_args!(
            r#"<path d="M{LEFT} {y:.1}H{RIGHT}" class="grid"/><text x="{:.1}" y="{:.1}" text-anchor="end" class="quiet small">{value}</text>"#,
            LEFT - 8.0,
            y + 4.0
        ));
    }
}

/// The axis of time, below the last panel, and what its seconds count from.
pub(crate) fn seconds(svg: &mut Svg, time: Time, bottom: f64, title: &str) {
    let step = step(time.until, MOST_SECONDS);
    for second in (0..).map(|tick| f64::from(tick * step)).take_while(|&second| second < time.until) {
        let x = time.x(second);
        svg.line(format_args!(
            r#"<path d="M{x:.1} {bottom:.1}v5" class="grid"/><text x="{x:.1}" y="{:.1}" text-anchor="middle" class="quiet small">{second} s</text>"#,
            bottom + 18.0
        ));
    }
    svg.line(format_args!(
        r#"<text x="{RIGHT}" y="{:.1}" text-anchor="end" class="quiet small">{title}</text>"#,
        bottom + 36.0
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_a_number_and_has_few_of_them() {
        let scale = |largest| {
            let scale = Scale::of([3.0, largest].into_iter(), 100.0, 50.0);
            (scale.step, scale.most)
        };
        assert_eq!([12.0, 64.0, 663.2].map(scale), [(4, 12.0), (20, 80.0), (200, 800.0)]);
    }

    #[test]
    fn a_step_is_drawn_where_it_happens() {
        let values = [(0.0, 2.0), (5.0, 2.0), (10.0, 4.0), (20.0, 4.0)];
        let time = Time { from: 0.0, until: 20.0 };
        let scale = Scale { bottom: 100.0, height: 40.0, step: 1, most: 4.0 };
        let path = stairs(&values, time, scale);
        assert_eq!(path, "M64.0 80.0H500.0V60.0H936.0");
    }
}
