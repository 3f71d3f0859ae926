//! The run as SVG: shares, errors and failed requests over time, and the table. Pure: the same record is always the same
//! picture.

use svg::{Svg, escaped};

use super::record::{Counts, EventKind, Record, Settings, Version, table};
use crate::chart::{self, CHARACTER, LEFT, MARGIN, RIGHT, Scale, Time, WIDTH, stairs_until};

/// Title, conditions and legend.
const HEAD: f64 = 124.0;
/// The title of a panel, above it.
const HEADING: f64 = 26.0;
const SHARES: f64 = 112.0;
const ERRORS: f64 = 150.0;
const FAILED: f64 = 56.0;
/// Between panels.
const GAP: f64 = 16.0;
/// Numbers and title of the axis of time.
const AXIS: f64 = 52.0;
const ROW: f64 = 22.0;
/// Right ends of the two columns of the table.
const COLUMNS: [f64; 2] = [520.0, 680.0];
/// After the last event.
const TAIL_SECONDS: f64 = 15.0;
/// What is above is not drawn: the bound of the first few requests says nothing.
const MOST_PERCENT: f64 = 60.0;

/// Colours by class, so that the picture is light on light pages and dark on dark ones.
const STYLE: &str = "\
    .title{font-size:18px;font-weight:600}.strong{font-weight:600;font-size:13px}.small{font-size:11px}\
    text{fill:#1f2328}.quiet{fill:#57606a}.ground{fill:#ffffff;stroke:#d0d7de}.grid{stroke:#d8dee4;fill:none}\
    .mark{font-size:11px;paint-order:stroke;stroke:#ffffff;stroke-width:3px;stroke-linejoin:round}\
    .span{fill:#f6f8fa}.stable{stroke:#57606a;stroke-width:2;fill:none}\
    .allowed{stroke:#57606a;stroke-width:1;stroke-dasharray:3 3;fill:none}.verdict{stroke:#1f2328;stroke-dasharray:2 3}\
    .line{stroke-width:2;fill:none}.area{stroke:none;fill-opacity:.25}\
    .line.bad{stroke:#bc4c00}.area.bad,.bar{fill:#bc4c00}.line.good{stroke:#0969da}.area.good{fill:#0969da}\
    @media (prefers-color-scheme:dark){\
    text{fill:#e6edf3}.quiet{fill:#9198a1}.ground{fill:#0d1117;stroke:#3d444d}.grid{stroke:#30363d}\
    .mark{stroke:#0d1117}.span{fill:#161b22}.stable,.allowed{stroke:#9198a1}.verdict{stroke:#e6edf3}\
    .line.bad{stroke:#f0883e}.area.bad,.bar{fill:#f0883e}.line.good{stroke:#58a6ff}.area.good{fill:#58a6ff}}";

/// What the status said of one step, each with its second.
#[derive(Debug, PartialEq)]
struct Run {
    version: Version,
    looks: Vec<Look>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Look {
    second: f64,
    stable: Counts,
    candidate: Counts,
    upper_bound_percent: f64,
}

struct Picture<'a> {
    svg: Svg,
    record: &'a Record,
    time: Time,
}

/// The picture of a run.
pub(crate) fn svg(record: &Record) -> String {
    let table = table(record);
    let bottoms = bottoms();
    let [shares, errors, failed] = bottoms;
    let height = failed + AXIS + ROW * (table.len() as f64 + 1.0) + 44.0;
    let mut svg = Svg::new(WIDTH, height, STYLE);
    svg.line(format_args!(r#"<rect width="{WIDTH}" height="{height}" rx="8" class="ground"/>"#));
    let time = Time { from: 0.0, until: end(record) };
    let mut picture = Picture { svg, record, time };
    picture.head();
    picture.spans();
    // With room above the largest share.
    picture.shares(Scale::of([80.0].into_iter(), shares, SHARES));
    picture.errors(Scale::of([MOST_PERCENT].into_iter(), errors, ERRORS));
    let most = record.load.failed_by_second.values().map(|failed| f64::from(*failed));
    picture.failed(Scale::of(most.chain([4.0]), failed, FAILED));
    picture.verdicts();
    chart::seconds(&mut picture.svg, time, failed, "seconds since the load began");
    picture.table(failed + AXIS + 24.0, &table);
    picture.svg.finished()
}

/// A little after the last event and the last failure. The load goes on.
fn end(record: &Record) -> f64 {
    let event = record.events.last().map_or(0.0, |event| event.second);
    let failure = record.load.failed_by_second.keys().next_back().map_or(0.0, |second| f64::from(*second));
    (event.max(failure) + TAIL_SECONDS).min(record.settings.load_seconds.into())
}

/// The baselines of the panels.
fn bottoms() -> [f64; 3] {
    let mut bottom = HEAD - GAP;
    [SHARES, ERRORS, FAILED].map(|height| {
        bottom += GAP + HEADING + height;
        bottom
    })
}

fn conditions(record: &Record) -> [String; 2] {
    let Record { kubernetes, settings, .. } = record;
    let Settings { requests_per_second, interval_seconds, bad_percent, limit_percent, step_percents, .. } =
        settings;
    let [first, second] = step_percents;
    [
        format!(
            "Kubernetes {kubernetes}, two real nodes, Contour with Envoy, {requests_per_second} requests per second; \
             the engines are small programs with vLLM's metrics."
        ),
        format!(
            "Steps of {first} % and {second} %, engines are read every {interval_seconds} s, limitPercent \
             \"{limit_percent}\". The bad version fails {bad_percent} % of its requests, the good one none."
        ),
    ]
}

/// The status of each step, apart.
fn runs(record: &Record) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let (mut version, mut of_step) = (Version::Bad, None);
    for event in &record.events {
        match event.what {
            EventKind::Applied { version: applied } => (version, of_step) = (applied, None),
            EventKind::Counted { step, stable, candidate, upper_bound_percent } => {
                let look = Look { second: event.second, stable, candidate, upper_bound_percent };
                match runs.last_mut() {
                    Some(run) if of_step == Some(step) => run.looks.push(look),
                    _ => runs.push(Run { version, looks: vec![look] }),
                }
                of_step = Some(step);
            }
            EventKind::Share { .. }
            | EventKind::Passed { .. }
            | EventKind::RolledBack { .. }
            | EventKind::Promoted
            | EventKind::Gone => {}
        }
    }
    runs
}

fn class(version: Version) -> &'static str {
    match version {
        Version::Bad => "bad",
        Version::Good => "good",
    }
}

impl Picture<'_> {
    fn head(&mut self) {
        let title = "A bad version of a model is taken back, a good one becomes stable";
        self.svg.text(MARGIN, 34.0, "title", title);
        for (place, line) in conditions(self.record).iter().enumerate() {
            self.svg.text(MARGIN, 56.0 + 17.0 * place as f64, "quiet", line);
        }
        let y = 102.0;
        let mut x = MARGIN;
        for version in Version::BOTH {
            let class = class(version);
            self.svg.line(format_args!(
                r#"<rect x="{x:.1}" y="{:.1}" width="20" height="12" class="area {class}"/><path d="M{x:.1} {:.1}h20" class="line {class}"/>"#,
                y - 10.0,
                y - 4.0
            ));
            x = self.label(x + 26.0, y, &version.to_string());
        }
        self.svg.line(format_args!(r#"<path d="M{x:.1} {:.1}h20" class="stable"/>"#, y - 4.0));
        x = self.label(x + 26.0, y, "stable");
        self.svg.line(format_args!(r#"<path d="M{x:.1} {:.1}h20" class="allowed"/>"#, y - 4.0));
        x = self.label(x + 26.0, y, "allowed bound");
        self.svg.line(format_args!(r#"<path d="M{x:.1} {:.1}v14" class="verdict"/>"#, y - 11.0));
        self.label(x + 8.0, y, "verdict");
    }

    /// Returns where the next entry of the legend begins.
    fn label(&mut self, x: f64, y: f64, text: &str) -> f64 {
        self.svg.text(x, y, "quiet", text);
        x + CHARACTER * text.len() as f64 + 22.0
    }

    /// From when on `spec.canary` names each version, in every panel.
    fn spans(&mut self) {
        let applied = |wanted: Version| {
            let wanted = EventKind::Applied { version: wanted };
            self.record.events.iter().find(|event| event.what == wanted).map(|event| event.second)
        };
        let [Some(bad), Some(good)] = Version::BOTH.map(applied) else { return };
        let ends = [(bad, good), (good, self.time.until)];
        for (version, (from, until)) in Version::BOTH.into_iter().zip(ends) {
            // A gap between the two.
            let (x, end) = (self.time.x(from), self.time.x(until) - 2.0);
            for (bottom, height) in bottoms().into_iter().zip([SHARES, ERRORS, FAILED]) {
                self.svg.line(format_args!(
                    r#"<rect x="{x:.1}" y="{:.1}" width="{:.1}" height="{height}" class="span"/>"#,
                    bottom - height,
                    end - x
                ));
            }
            let [shares, ..] = bottoms();
            self.svg.text(x + 6.0, shares - SHARES + 15.0, "mark", &format!("spec.canary: the {version}"));
        }
    }

    fn shares(&mut self, scale: Scale) {
        chart::panel(&mut self.svg, scale, "Share of the candidate: its weight in the HTTPRoute, percent");
        for version in Version::BOTH {
            let values = self.shares_of(version);
            let until = match version {
                Version::Bad => values.last().map_or(0.0, |(second, _)| *second),
                Version::Good => self.time.until,
            };
            let path = stairs_until(until, &values, self.time, scale);
            let class = class(version);
            let Some((from, _)) = values.first() else { continue };
            let from = self.time.x(*from);
            self.svg.line(format_args!(
                r#"<path d="{path}V{:.1}H{from:.1}Z" class="area {class}"/><path d="{path}" class="line {class}"/>"#,
                scale.bottom
            ));
            for pair in values.windows(2) {
                let [(_, before), (second, percent)] = pair else { continue };
                if percent != before {
                    let y = scale.y(*percent) - 5.0;
                    self.svg.text(self.time.x(*second) + 4.0, y, "mark", &format!("{percent} %"));
                }
            }
        }
    }

    /// From its first share to the next version.
    fn shares_of(&self, version: Version) -> Vec<(f64, f64)> {
        let (mut of, mut values) = (None, Vec::new());
        for event in &self.record.events {
            match event.what {
                EventKind::Applied { version: applied } => {
                    of = Some(applied);
                    // The one before it ends here.
                    if applied == version || !values.is_empty() {
                        values.push((event.second, 0.0));
                    }
                }
                EventKind::Share { percent } if of == Some(version) => {
                    values.push((event.second, f64::from(percent)));
                }
                EventKind::Share { .. }
                | EventKind::Counted { .. }
                | EventKind::Passed { .. }
                | EventKind::RolledBack { .. }
                | EventKind::Promoted
                | EventKind::Gone => {}
            }
        }
        values
    }

    fn errors(&mut self, scale: Scale) {
        let title = "Errors of a step in status.canary.analysis, percent; the area ends at the bound with 95 % confidence";
        chart::panel(&mut self.svg, scale, title);
        let allowed = scale.y(self.record.settings.limit_percent.into());
        self.svg.line(format_args!(r#"<path d="M{LEFT} {allowed:.1}H{RIGHT}" class="allowed"/>"#));
        for Run { version, looks } in runs(self.record) {
            let class = class(version);
            let points = |percent: fn(&Look) -> f64| -> Vec<String> {
                let point = |look: &Look| {
                    let y = scale.y(percent(look).min(MOST_PERCENT));
                    format!("{:.1},{y:.1}", self.time.x(look.second))
                };
                looks.iter().map(point).collect()
            };
            let candidate = points(|look| look.candidate.percent());
            let stable = points(|look| look.stable.percent()).join(" ");
            let bound = points(|look| look.upper_bound_percent);
            let area = candidate.iter().chain(bound.iter().rev()).cloned().collect::<Vec<_>>().join(" ");
            self.svg.line(format_args!(r#"<polygon points="{area}" class="area {class}"/>"#));
            self.svg.line(format_args!(r#"<polyline points="{stable}" class="stable"/>"#));
            self.svg
                .line(format_args!(r#"<polyline points="{}" class="line {class}"/>"#, candidate.join(" ")));
            let (Some(first), Some(last)) = (looks.first(), looks.last()) else { continue };
            let Look { candidate, upper_bound_percent, .. } = *last;
            let lines = [
                format!("{} of {} failed,", candidate.bad, candidate.ended),
                format!("below {upper_bound_percent:.1} %"),
            ];
            // Above the area, which is highest at its beginning.
            let above = scale.y(first.upper_bound_percent.min(MOST_PERCENT - 15.0)) - 20.0;
            for (place, line) in lines.iter().enumerate() {
                self.svg.text(self.time.x(first.second), above + 14.0 * place as f64, "mark", line);
            }
        }
    }

    fn failed(&mut self, scale: Scale) {
        let sent = self.record.settings.requests_per_second;
        chart::panel(&mut self.svg, scale, &format!("Failed requests of the load, per second (of {sent})"));
        let width = (self.time.x(1.0) - self.time.x(0.0) - 0.5).max(1.0);
        for (second, failed) in &self.record.load.failed_by_second {
            let (x, y) = (self.time.x(f64::from(*second)), scale.y(f64::from(*failed)));
            self.svg.line(format_args!(
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{:.1}" class="bar"/>"#,
                scale.bottom - y
            ));
        }
    }

    fn verdicts(&mut self) {
        let [shares, errors, failed] = bottoms();
        for event in &self.record.events {
            let text = match &event.what {
                EventKind::RolledBack { .. } => "fail",
                EventKind::Passed { .. } => "pass",
                EventKind::Applied { .. }
                | EventKind::Share { .. }
                | EventKind::Counted { .. }
                | EventKind::Promoted
                | EventKind::Gone => continue,
            };
            let x = self.time.x(event.second);
            // Below the name of the version, and not through the titles of the panels.
            let tops = [shares - SHARES + 22.0, errors - ERRORS, failed - FAILED];
            for (top, bottom) in tops.into_iter().zip(bottoms()) {
                self.svg.line(format_args!(r#"<path d="M{x:.1} {top:.1}V{bottom:.1}" class="verdict"/>"#));
            }
            // Left of it, because the next share is named on the right.
            self.svg.line(format_args!(
                r#"<text x="{:.1}" y="{:.1}" text-anchor="end" class="mark">{text}</text>"#,
                x - 4.0,
                shares - SHARES + 32.0
            ));
        }
    }

    fn table(&mut self, top: f64, table: &[(&str, [String; 2])]) {
        self.svg.text(MARGIN, top, "quiet", "seconds since its first share of the requests");
        self.cells(top, "strong", &Version::BOTH.map(|version| version.to_string()));
        for (place, (title, values)) in table.iter().enumerate() {
            let y = top + ROW * (place as f64 + 1.0);
            self.svg.line(format_args!(
                r#"<path d="M{MARGIN} {:.1}H{:.1}" class="grid"/>"#,
                y - 15.0,
                COLUMNS[1]
            ));
            self.svg.text(MARGIN, y, "", title);
            self.cells(y, "", values);
        }
    }

    fn cells(&mut self, y: f64, class: &str, values: &[String; 2]) {
        for (x, value) in COLUMNS.iter().zip(values) {
            let value = escaped(value);
            self.svg.line(format_args!(
                r#"<text x="{x:.1}" y="{y:.1}" text-anchor="end" class="{class}">{value}</text>"#
            ));
        }
    }
}
