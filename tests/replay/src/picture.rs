//! The course of each policy as a picture: what waits, and how many replicas there are. Pure.

use svg::{Svg, escaped};

use crate::model::{Moment, Outcome};

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 24.0;
const HEIGHT: f64 = 150.0;
const GAP: f64 = 44.0;
const TOP: f64 = 24.0;
/// More points than columns of pixels show nothing more.
const COLUMNS: usize = 900;
const COLOURS: [&str; 6] = ["#2f6fde", "#d9622b", "#2a9d5c", "#8b5bd6", "#b8862b", "#5c6770"];
const STYLE: &str = ".ground{fill:#fff}text{fill:#1f2328}.axis{stroke:#d0d7de}.line{fill:none;stroke-width:1.5}\
                     @media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#e6edf3}.axis{stroke:#30363d}}";

/// Two panels above each other, with a line for each policy.
pub(crate) fn svg(rows: &[(String, Outcome)]) -> String {
    let legend = TOP + 2.0 * (HEIGHT + GAP);
    let height = legend + 20.0 * rows.len() as f64 + 12.0;
    let mut svg = Svg::new(WIDTH, height, STYLE);
    svg.line(format_args!(r#"<rect width="{WIDTH}" height="{height}" rx="8" class="ground"/>"#));
    let seconds = rows.iter().flat_map(|(_, outcome)| outcome.course.last()).map(|last| last.second).max();
    let seconds = f64::from(seconds.unwrap_or(1).max(1));
    panel(&mut svg, TOP, "requests that wait", seconds, rows, |moment| moment.waiting);
    panel(&mut svg, TOP + HEIGHT + GAP, "replicas, also those that start", seconds, rows, |moment| {
        moment.replicas
    });
    for (index, (label, _)) in rows.iter().enumerate() {
        let (y, colour) = (legend + 20.0 * index as f64, colour(index));
        svg.line(format_args!(
            r#"<rect x="{LEFT}" y="{:.1}" width="14" height="4" fill="{colour}"/>"#,
            y - 6.0
        ));
        svg.text(LEFT + 22.0, y, "", label);
    }
    svg.finished()
}

fn panel(
    svg: &mut Svg,
    top: f64,
    title: &str,
    seconds: f64,
    rows: &[(String, Outcome)],
    value: impl Fn(&Moment) -> usize,
) {
    let most =
        rows.iter().flat_map(|(_, outcome)| &outcome.course).map(&value).max().unwrap_or_default().max(1);
    let bottom = top + HEIGHT;
    svg.text(LEFT, top - 8.0, "", title);
    svg.line(format_args!(
        r#"<line x1="{LEFT}" y1="{bottom}" x2="{:.1}" y2="{bottom}" class="axis"/>"#,
        WIDTH - RIGHT
    ));
    for (y, label) in [(bottom, "0".to_owned()), (top, most.to_string())] {
        let label = escaped(&label);
        svg.line(format_args!(
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{label}</text>"#,
            LEFT - 8.0,
            y + 4.0
        ));
    }
    svg.line(format_args!(
        r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
        WIDTH - RIGHT,
        bottom + 16.0,
        span(seconds)
    ));
    for (index, (_, outcome)) in rows.iter().enumerate() {
        let points: Vec<String> = columns(&outcome.course, &value)
            .map(|(second, value)| {
                let x = LEFT + (WIDTH - LEFT - RIGHT) * f64::from(second) / seconds;
                let y = bottom - HEIGHT * value as f64 / most as f64;
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let (points, colour) = (points.join(" "), colour(index));
        svg.line(format_args!(r#"<polyline class="line" stroke="{colour}" points="{points}"/>"#));
    }
}

/// The largest value of each column: a short queue must not disappear.
fn columns<'c>(
    course: &'c [Moment],
    value: &'c impl Fn(&Moment) -> usize,
) -> impl Iterator<Item = (u32, usize)> + 'c {
    let each = course.len().div_ceil(COLUMNS).max(1);
    course.chunks(each).filter_map(move |chunk| Some((chunk.first()?.second, chunk.iter().map(value).max()?)))
}

fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

fn span(seconds: f64) -> String {
    match seconds {
        ..7_200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_a_line_in_each_panel_and_a_short_queue_is_seen() {
        let moment =
            |index: u32| Moment { second: index * 15, waiting: usize::from(index == 3_001) * 9, replicas: 2 };
        let outcome = Outcome { course: (0..4_000).map(moment).collect(), ..Outcome::default() };
        let rows = [("AIScaler <a>".to_owned(), outcome.clone()), ("HPA a".to_owned(), outcome)];
        let picture = svg(&rows);
        assert_eq!(picture.matches("<polyline").count(), 4);
        assert!(picture.contains("AIScaler &lt;a&gt;") && picture.contains(">16.7 h<"), "{picture}");
        let largest =
            columns(&rows[0].1.course, &|moment: &Moment| moment.waiting).map(|(_, waiting)| waiting).max();
        assert_eq!(largest, Some(9));
        assert!(columns(&rows[0].1.course, &|moment: &Moment| moment.waiting).count() <= COLUMNS);
    }
}
