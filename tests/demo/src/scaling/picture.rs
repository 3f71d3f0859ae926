//! The run as SVG: load, queues and replicas over time, and the table. Pure: the same record is always the same picture.

use super::{
    course::{self, AT_ONCE, Moment, REQUEST_SECONDS},
    record::{Autoscaler, EventKind, Record, Settings},
};
use crate::chart::{self, CHARACTER, LEFT, MARGIN, Scale, Time, WIDTH, stairs};
use svg::{Svg, escaped};

/// Title, conditions and legend.
const HEAD: f64 = 122.0;
/// The title of a panel, above it.
const HEADING: f64 = 26.0;
const LOW: f64 = 48.0;
const HIGH: f64 = 128.0;
/// Between panels.
const GAP: f64 = 14.0;
/// Numbers and title of the axis of time.
const AXIS: f64 = 52.0;
const ROW: f64 = 22.0;
/// Right ends of the two columns of the table.
const COLUMNS: [f64; 2] = [520.0, 680.0];
/// Colours by class, so that the picture is light on light pages and dark on dark ones.
const STYLE: &str = "\
    .title{font-size:18px;font-weight:600}.strong{font-weight:600;font-size:13px}.small{font-size:11px}\
    text{fill:#1f2328}.quiet{fill:#57606a}.ground{fill:#ffffff;stroke:#d0d7de}.grid{stroke:#d8dee4;fill:none}\
    .mark{font-size:11px;paint-order:stroke;stroke:#ffffff;stroke-width:3px;stroke-linejoin:round}\
    .burst{fill:#eaeef2}.load,.need{stroke:#57606a;stroke-width:2;fill:none}\
    .need{stroke-width:1;stroke-dasharray:3 3}\
    .line{stroke-width:2;fill:none}.ready{stroke:none;fill-opacity:.3}.dot{stroke:#ffffff}\
    .line.hpa{stroke:#bc4c00}.ready.hpa,.dot.hpa{fill:#bc4c00}\
    .line.aiscaler{stroke:#0969da}.ready.aiscaler,.dot.aiscaler{fill:#0969da}\
    @media (prefers-color-scheme:dark){\
    text{fill:#e6edf3}.quiet{fill:#9198a1}.ground{fill:#0d1117;stroke:#3d444d}.grid{stroke:#30363d}\
    .mark{stroke:#0d1117}.burst{fill:#1c2128}.load,.need{stroke:#9198a1}.dot{stroke:#0d1117}\
    .line.hpa{stroke:#f0883e}.ready.hpa,.dot.hpa{fill:#f0883e}\
    .line.aiscaler{stroke:#58a6ff}.ready.aiscaler,.dot.aiscaler{fill:#58a6ff}}";

/// Both Deployments, and where they are drawn.
struct Picture<'a> {
    svg: Svg,
    record: &'a Record,
    time: Time,
}

/// The picture of a run.
pub(crate) fn svg(record: &Record) -> String {
    let courses = Autoscaler::BOTH.map(|of| (of, course::course(record, of)));
    let table = course::table(record);
    let bottoms = bottoms();
    let axis = bottoms[bottoms.len() - 1];
    let height = axis + AXIS + ROW * (table.len() as f64 + 1.0) + 44.0;
    let mut svg = Svg::new(WIDTH, height, STYLE);
    svg.line(format_args!(r#"<rect width="{WIDTH}" height="{height}" rx="8" class="ground"/>"#));
    let time = Time { from: record.from, until: record.until };
    let mut picture = Picture { svg, record, time };
    picture.head();
    picture.burst(&bottoms);
    let [load, queue, hpa, aiscaler] = bottoms;
    picture.load(load);
    picture.queues(queue, &courses);
    for ((of, course), bottom) in courses.iter().zip([hpa, aiscaler]) {
        let desired = courses.iter().flat_map(|(_, course)| course.iter().map(|now| f64::from(now.desired)));
        picture.replicas(*of, course, Scale::of(desired, bottom, HIGH));
    }
    chart::seconds(&mut picture.svg, picture.time, axis, "seconds since the burst began");
    picture.table(axis + AXIS + 24.0, &table);
    picture.svg.finished()
}

/// What both are set to, and what is simulated.
fn conditions(record: &Record) -> [String; 2] {
    let Record { kubernetes, settings, cold_start_seconds, .. } = record;
    let Settings { target_value, min_replicas, max_replicas, period_seconds, down_window_seconds } = settings;
    [
        format!(
            "Kubernetes {kubernetes}, simulated nodes and pods (KWOK), which are Ready after {cold_start_seconds} s; \
             a model computes each queue from the Ready replicas."
        ),
        format!(
            "Both: {target_value} requests per replica, {min_replicas} to {max_replicas} replicas, scale-down window \
             {down_window_seconds} s (default 300 s), a decision every {period_seconds} s (default)."
        ),
    ]
}

/// The baselines of the panels: load, queues, replicas of each.
fn bottoms() -> [f64; 4] {
    let mut bottom = HEAD - GAP;
    [LOW, HIGH, HIGH, HIGH].map(|height| {
        bottom += GAP + HEADING + height;
        bottom
    })
}

impl Picture<'_> {
    fn head(&mut self) {
        let title = "A burst of requests: HorizontalPodAutoscaler and AIScaler with the same settings";
        self.svg.text(MARGIN, 34.0, "title", title);
        for (place, line) in conditions(self.record).iter().enumerate() {
            self.svg.text(MARGIN, 56.0 + 17.0 * place as f64, "quiet", line);
        }
        let y = 102.0;
        let mut x = MARGIN;
        for of in Autoscaler::BOTH {
            self.svg.line(format_args!(
                r#"<path d="M{x:.1} {:.1}h20" class="line {}"/>"#,
                y - 4.0,
                of.name()
            ));
            x = self.label(x + 26.0, y, of.kind());
        }
        for of in Autoscaler::BOTH {
            self.svg.line(format_args!(
                r#"<rect x="{x:.1}" y="{:.1}" width="12" height="12" class="ready {}"/>"#,
                y - 10.0,
                of.name()
            ));
            x += 14.0;
        }
        x = self.label(x + 4.0, y, "Ready replicas");
        for of in Autoscaler::BOTH {
            self.dot(x + 5.0, y - 4.0, of);
            x += 13.0;
        }
        x = self.label(x + 4.0, y, "decision");
        self.svg.line(format_args!(
            r#"<rect x="{x:.1}" y="{:.1}" width="12" height="12" class="burst"/>"#,
            y - 10.0
        ));
        x = self.label(x + 18.0, y, "burst");
        self.svg.line(format_args!(r#"<path d="M{x:.1} {:.1}h20" class="need"/>"#, y - 4.0));
        self.label(x + 26.0, y, "replicas that the load needs");
    }

    /// Returns where the next entry of the legend begins.
    fn label(&mut self, x: f64, y: f64, text: &str) -> f64 {
        self.svg.text(x, y, "quiet", text);
        x + CHARACTER * text.len() as f64 + 22.0
    }

    fn dot(&mut self, x: f64, y: f64, of: Autoscaler) {
        self.svg.line(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" class="dot {}"/>"#, of.name()));
    }

    /// The time of the larger load, in every panel.
    fn burst(&mut self, bottoms: &[f64]) {
        let [_, (begins, _), (ends, _)] = self.loads()[..] else { return };
        let (x, end) = (self.time.x(begins), self.time.x(ends));
        for (bottom, height) in bottoms.iter().zip([LOW, HIGH, HIGH, HIGH]) {
            self.svg.line(format_args!(
                r#"<rect x="{x:.1}" y="{:.1}" width="{:.1}" height="{height}" class="burst"/>"#,
                bottom - height,
                end - x
            ));
        }
    }

    fn load(&mut self, bottom: f64) {
        let loads = self.loads();
        let scale = Scale::of(loads.iter().map(|(_, rate)| *rate), bottom, LOW);
        let title = format!(
            "Load of each, requests per second; a replica runs {AT_ONCE} at a time, each for {REQUEST_SECONDS} s"
        );
        chart::panel(&mut self.svg, scale, &title);
        let path = stairs(&loads, self.time, scale);
        self.svg.line(format_args!(r#"<path d="{path}" class="load"/>"#));
    }

    /// Requests per second, from each of these times on.
    fn loads(&self) -> Vec<(f64, f64)> {
        let changes = self.record.events.iter().filter_map(|event| match event.what {
            EventKind::Load { requests_per_second } => Some((event.second, f64::from(requests_per_second))),
            EventKind::Desired { .. } | EventKind::Ready { .. } => None,
        });
        [(self.record.from, f64::from(self.record.requests_per_second))].into_iter().chain(changes).collect()
    }

    fn queues(&mut self, bottom: f64, courses: &[(Autoscaler, Vec<Moment>); 2]) {
        let requests = courses.iter().flat_map(|(_, course)| course.iter().map(|now| now.requests));
        let scale = Scale::of(requests, bottom, HIGH);
        chart::panel(&mut self.svg, scale, "Queue: requests that wait and run");
        for (of, course) in courses {
            // A point per second.
            let points = course.iter().filter(|moment| moment.second.fract() == 0.0);
            let points: Vec<String> = points
                .map(|now| format!("{:.1},{:.1}", self.time.x(now.second), scale.y(now.requests)))
                .collect();
            self.svg.line(format_args!(
                r#"<polyline points="{}" class="line {}"/>"#,
                points.join(" "),
                of.name()
            ));
        }
        for (of, course) in courses {
            let Some(second) = course::figures(self.record, *of).cleared_after else { continue };
            let Some(cleared) = course.iter().find(|moment| moment.second >= second) else { continue };
            let (x, y) = (self.time.x(cleared.second), scale.y(cleared.requests));
            self.dot(x, y, *of);
            self.svg.text(x + 9.0, y - 5.0, "mark", &format!("no request waits after {second:.1} s"));
        }
    }

    fn replicas(&mut self, of: Autoscaler, course: &[Moment], scale: Scale) {
        chart::panel(&mut self.svg, scale, &format!("Replicas by the {}", of.kind()));
        let class = of.name();
        let values = |value: fn(&Moment) -> u32| -> Vec<(f64, f64)> {
            course.iter().map(|now| (now.second, f64::from(value(now)))).collect()
        };
        let ready = stairs(&values(|now| now.ready), self.time, scale);
        self.svg
            .line(format_args!(r#"<path d="{ready}V{:.1}H{LEFT}Z" class="ready {class}"/>"#, scale.bottom));
        // A Ready replica serves one request per second.
        let need = stairs(&self.loads(), self.time, scale);
        self.svg.line(format_args!(r#"<path d="{need}" class="need"/>"#));
        let desired = stairs(&values(|now| now.desired), self.time, scale);
        self.svg.line(format_args!(r#"<path d="{desired}" class="line {class}"/>"#));
        for event in &self.record.events {
            let EventKind::Desired { of: whose, from, replicas } = event.what else { continue };
            if whose != of {
                continue;
            }
            let (x, y) = (self.time.x(event.second), scale.y(f64::from(replicas)));
            self.dot(x, y, of);
            // Where no line is: above, before a step up and after a step down.
            let (x, anchor) = if replicas > from { (x - 5.0, "end") } else { (x + 5.0, "start") };
            self.svg.line(format_args!(
                r#"<text x="{x:.1}" y="{:.1}" text-anchor="{anchor}" class="mark">{replicas}</text>"#,
                y - 5.0
            ));
        }
    }

    fn table(&mut self, top: f64, table: &[(&str, [String; 2])]) {
        self.cells(top, "strong", &Autoscaler::BOTH.map(|of| of.to_string()));
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
