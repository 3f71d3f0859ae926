//! The timeline as SVG. Pure: the same record is always the same picture.

use super::record::{Event, EventKind, Record, Workload};
use svg::{Svg, escaped};

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
/// Where the axis begins, right of the labels.
const LEFT: f64 = 232.0;
const HEAD: f64 = 84.0;
const ROW: f64 = 42.0;
const BAR: f64 = 22.0;
const HEADING: f64 = 34.0;
const FOOT: f64 = 70.0;
/// A character of 12 px, on average; labels that do not fit into their bar are left out, and the legend explains it.
const CHARACTER: f64 = 6.4;
/// The width of a time below a bar, which a narrower bar has no room for.
const TIME: f64 = 46.0;
/// How much of the picture is before the node dies, and after the last event.
const LEAD: f64 = 0.08;
const TAIL: f64 = 0.14;
/// Seconds between two ticks: the smallest of which no more than this many fit.
const STEPS: [u32; 6] = [5, 10, 20, 30, 60, 120];
const MOST_TICKS: f64 = 12.0;

/// The stage that a bar shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PodStage {
    Serves,
    Silent,
    Unready,
    Terminating,
    Loads,
    WarmsUp,
}

/// In the order of a life; the legend has this order too.
const POD_STAGES: [PodStage; 6] = [
    PodStage::Serves,
    PodStage::Silent,
    PodStage::Unready,
    PodStage::Terminating,
    PodStage::Loads,
    PodStage::WarmsUp,
];

impl PodStage {
    fn fill(self) -> &'static str {
        match self {
            Self::Serves => "#2da44e",
            Self::Silent => "#e3b341",
            Self::Unready => "#cf222e",
            Self::Terminating => "#d0d7de",
            Self::Loads => "#0969da",
            Self::WarmsUp => "#80ccff",
        }
    }

    /// Colour of text on it.
    fn ink(self) -> &'static str {
        match self {
            Self::Serves | Self::Unready | Self::Loads => "#ffffff",
            Self::Silent | Self::Terminating | Self::WarmsUp => "#1f2328",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Serves => "Ready",
            Self::Silent => "dead, still Ready in the API",
            Self::Unready => "not Ready",
            Self::Terminating => "deleted",
            Self::Loads => "loads the model",
            Self::WarmsUp => "warms up",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    from: f64,
    until: f64,
    stage: PodStage,
}

#[derive(Debug, PartialEq)]
enum Row {
    Heading { title: String, result: String },
    Bars { label: String, spans: Vec<Span> },
}

impl Row {
    fn height(&self) -> f64 {
        match self {
            Self::Heading { .. } => HEADING,
            Self::Bars { .. } => ROW,
        }
    }
}

/// From seconds to pixels.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    until: f64,
}

impl Axis {
    fn of(events: &[Event]) -> Self {
        let last = events.last().map_or(0.0, |event| event.second).max(1.0);
        Self { from: -last * LEAD, until: last * (1.0 + TAIL) }
    }

    fn x(self, second: f64) -> f64 {
        LEFT + (second - self.from) / (self.until - self.from) * (WIDTH - MARGIN - LEFT)
    }

    fn step(self) -> u32 {
        let fits = |step: &u32| self.until / f64::from(*step) <= MOST_TICKS;
        STEPS.into_iter().find(fits).unwrap_or(STEPS[STEPS.len() - 1])
    }
}

/// The picture of a run.
pub(crate) fn svg(record: &Record) -> String {
    let axis = Axis::of(&record.events);
    let rows = rows(record, axis);
    let bottom = HEAD + rows.iter().map(Row::height).sum::<f64>();
    let mut picture = Picture::new(bottom + FOOT);
    picture.svg.text(MARGIN, 34.0, "title", "A node dies under one of two replicas");
    let Record { kubernetes, node_failure_seconds, .. } = record;
    let subtitle = format!(
        "Kubernetes {kubernetes}, simulated nodes and pods (KWOK), nodeFailureSeconds {node_failure_seconds}; \
         seconds as observed in the API"
    );
    picture.svg.text(MARGIN, 56.0, "quiet", &subtitle);
    picture.ticks(axis, HEAD, bottom);
    picture.dies(axis, bottom);
    let mut top = HEAD;
    for row in &rows {
        match row {
            Row::Heading { title, result } => picture.heading(top, title, result),
            Row::Bars { label, spans } => picture.bars(top, axis, label, spans),
        }
        top += row.height();
    }
    picture.legend(bottom + 48.0, &rows);
    picture.svg.finished()
}

fn rows(record: &Record, axis: Axis) -> Vec<Row> {
    let Record { kubernetes: _, node, node_failure_seconds, toleration_seconds, events } = record;
    let mut rows = vec![Row::Bars { label: format!("node {node}"), spans: node_spans(events, axis) }];
    for workload in [Workload::Inference, Workload::Deployment] {
        let pods = pods(events, workload);
        if pods.is_empty() {
            continue;
        }
        let title = match workload {
            Workload::Inference => format!("AIInference, nodeFailureSeconds: {node_failure_seconds}"),
            Workload::Deployment => {
                format!("Deployment of the same pods, default toleration: {toleration_seconds} s")
            }
        };
        rows.push(Row::Heading { title, result: result(events, workload) });
        rows.extend(pods.into_iter().map(|pod| pod_row(events, pod, node, axis)));
        if workload == Workload::Inference {
            let spans = condition_spans(events, axis);
            rows.push(Row::Bars { label: "condition Ready".to_owned(), spans });
        }
    }
    rows
}

/// When the last of its pods was Ready.
fn result(events: &[Event], workload: Workload) -> String {
    let ready =
        |event: &&Event| matches!(&event.what, EventKind::PodReady { workload: of, .. } if *of == workload);
    let last = events.iter().rev().find(ready);
    last.map_or(String::new(), |event| format!("two replicas serve again after {:.1} s", event.second))
}

/// Names of the pods of a workload, in the order in which something happened to them.
fn pods(events: &[Event], workload: Workload) -> Vec<&str> {
    let mut names = Vec::new();
    for (of, pod) in events.iter().filter_map(|event| pod_of(&event.what)) {
        if of == workload && !names.contains(&pod) {
            names.push(pod);
        }
    }
    names
}

fn pod_of(what: &EventKind) -> Option<(Workload, &str)> {
    match what {
        EventKind::PodUnready { workload, pod }
        | EventKind::PodDeleted { workload, pod }
        | EventKind::PodScheduled { workload, pod, .. }
        | EventKind::PodStarted { workload, pod }
        | EventKind::PodReady { workload, pod } => Some((*workload, pod)),
        EventKind::NodeDies
        | EventKind::NodeNotReady { .. }
        | EventKind::NotReady { .. }
        | EventKind::Ready => None,
    }
}

fn node_spans(events: &[Event], axis: Axis) -> Vec<Span> {
    let not_ready = |what: &EventKind| matches!(what, EventKind::NodeNotReady { .. });
    let changes = [
        (Some(axis.from), PodStage::Serves),
        (Some(0.0), PodStage::Silent),
        (second_of(events, not_ready), PodStage::Unready),
    ];
    spans(&changes, axis)
}

/// A pod that was scheduled during the run is a new one; any other was on the node that died.
fn pod_row(events: &[Event], name: &str, dies: &str, axis: Axis) -> Row {
    let of_pod: Vec<Event> = events
        .iter()
        .filter(|event| pod_of(&event.what).is_some_and(|(_, pod)| pod == name))
        .cloned()
        .collect();
    let scheduled = of_pod.iter().find_map(|event| match &event.what {
        EventKind::PodScheduled { node, .. } => Some((event.second, node)),
        _ => None,
    });
    let at = |claim: fn(&EventKind) -> bool| second_of(&of_pod, claim);
    match scheduled {
        Some((second, node)) => {
            let changes = [
                (Some(second), PodStage::Loads),
                (at(|what| matches!(what, EventKind::PodStarted { .. })), PodStage::WarmsUp),
                (at(|what| matches!(what, EventKind::PodReady { .. })), PodStage::Serves),
            ];
            Row::Bars { label: format!("new pod, on {node}"), spans: spans(&changes, axis) }
        }
        None => {
            let changes = [
                (Some(axis.from), PodStage::Serves),
                (Some(0.0), PodStage::Silent),
                (at(|what| matches!(what, EventKind::PodUnready { .. })), PodStage::Unready),
                (at(|what| matches!(what, EventKind::PodDeleted { .. })), PodStage::Terminating),
            ];
            Row::Bars { label: format!("pod on {dies}"), spans: spans(&changes, axis) }
        }
    }
}

fn condition_spans(events: &[Event], axis: Axis) -> Vec<Span> {
    let changes = [
        (Some(axis.from), PodStage::Serves),
        (second_of(events, |what| matches!(what, EventKind::NotReady { .. })), PodStage::Unready),
        (second_of(events, |what| matches!(what, EventKind::Ready)), PodStage::Serves),
    ];
    spans(&changes, axis)
}

fn second_of(events: &[Event], claim: impl Fn(&EventKind) -> bool) -> Option<f64> {
    events.iter().find(|event| claim(&event.what)).map(|event| event.second)
}

/// Each stage lasts until the next one that was observed.
fn spans(changes: &[(Option<f64>, PodStage)], axis: Axis) -> Vec<Span> {
    let observed: Vec<(f64, PodStage)> =
        changes.iter().filter_map(|&(second, stage)| Some((second?, stage))).collect();
    let ends = observed.iter().skip(1).map(|&(second, _)| second).chain([axis.until]);
    observed.iter().zip(ends).map(|(&(from, stage), until)| Span { from, until, stage }).collect()
}

/// The picture while it is drawn.
struct Picture {
    svg: Svg,
}

impl Picture {
    fn new(height: f64) -> Self {
        let style = ".title{font-size:18px;font-weight:600}.strong{font-weight:600;font-size:13px}\
                     .quiet{fill:#57606a}.time{fill:#57606a;font-size:11px}";
        let mut svg = Svg::new(WIDTH, height, style);
        // A ground of its own, so that it can be read on dark pages too.
        svg.line(format_args!(
            r##"<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d0d7de"/>"##
        ));
        Self { svg }
    }

    fn ticks(&mut self, axis: Axis, top: f64, bottom: f64) {
        let step = axis.step();
        for second in (0..).map(|tick| f64::from(tick * step)).take_while(|&second| second < axis.until) {
            let x = axis.x(second);
            self.svg.line(format_args!(
                r##"<path d="M{x:.1} {top:.1}V{bottom:.1}" stroke="#eaeef2"/><text x="{x:.1}" y="{y:.1}" text-anchor="middle" class="time">{second} s</text>"##,
                y = bottom + 16.0
            ));
        }
    }

    fn heading(&mut self, top: f64, title: &str, result: &str) {
        // No line of the grid runs through the text.
        self.svg.line(format_args!(
            r##"<rect x="{MARGIN}" y="{y:.1}" width="{width:.1}" height="20" fill="#ffffff"/>"##,
            y = top + 9.0,
            width = WIDTH - 2.0 * MARGIN
        ));
        self.svg.text(MARGIN, top + 24.0, "strong", title);
        let result = escaped(result);
        self.svg.line(format_args!(
            r##"<text x="{:.1}" y="{:.1}" text-anchor="end" class="strong">{result}</text>"##,
            WIDTH - MARGIN,
            top + 24.0
        ));
    }

    fn bars(&mut self, top: f64, axis: Axis, label: &str, spans: &[Span]) {
        self.svg.text(MARGIN, top + 19.0, "", label);
        for (place, &Span { from, until, stage }) in spans.iter().enumerate() {
            let (x, end) = (axis.x(from), axis.x(until));
            let width = end - x;
            self.svg.line(format_args!(
                r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}" fill="{fill}"/>"##,
                y = top + 4.0,
                fill = stage.fill()
            ));
            let meaning = stage.meaning();
            if width > CHARACTER * meaning.len() as f64 + 12.0 {
                self.svg.line(format_args!(
                    r##"<text x="{x:.1}" y="{y:.1}" fill="{ink}">{meaning}</text>"##,
                    x = x + 6.0,
                    y = top + 19.0,
                    ink = stage.ink()
                ));
            }
            // What begins with the picture or with the death of the node has no time of its own.
            if from <= 0.0 {
                continue;
            }
            let time = format!("{from:.1} s");
            if place == 0 {
                let (x, y) = (x - 6.0, top + 19.0);
                self.svg.line(format_args!(
                    r##"<text x="{x:.1}" y="{y:.1}" text-anchor="end" class="time">{time}</text>"##
                ));
            } else if width >= TIME || place + 1 == spans.len() {
                self.svg.text(x, top + 37.0, "time", &time);
            }
        }
    }

    /// The moment that everything else is counted from.
    fn dies(&mut self, axis: Axis, bottom: f64) {
        let x = axis.x(0.0);
        self.svg.line(format_args!(
            r##"<path d="M{x:.1} {HEAD:.1}V{bottom:.1}" stroke="#1f2328" stroke-dasharray="3 3"/>"##
        ));
        self.svg.text(x - 24.0, HEAD - 3.0, "time", "node dies");
    }

    fn legend(&mut self, y: f64, rows: &[Row]) {
        let shown = |stage: &PodStage| {
            rows.iter().any(|row| match row {
                Row::Heading { .. } => false,
                Row::Bars { spans, .. } => spans.iter().any(|span| span.stage == *stage),
            })
        };
        let mut x = MARGIN;
        for stage in POD_STAGES.into_iter().filter(shown) {
            self.svg.line(format_args!(
                r##"<rect x="{x:.1}" y="{top:.1}" width="12" height="12" rx="2" fill="{fill}"/>"##,
                top = y - 10.0,
                fill = stage.fill()
            ));
            self.svg.text(x + 18.0, y, "quiet", stage.meaning());
            x += 18.0 + CHARACTER * stage.meaning().len() as f64 + 22.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the command wrote in the run that the manual shows.
    const RECORD: &str = include_str!("../../../../docs/node-death.json");
    const PICTURE: &str = include_str!("../../../../docs/node-death.svg");

    #[test]
    fn the_picture_in_docs_is_that_of_the_record_beside_it() {
        let record: Record = serde_json::from_str(RECORD).unwrap();
        assert!(svg(&record) == PICTURE, "run `cargo xtask demo node-death --draw docs/node-death.json`");
    }

    #[test]
    fn a_pod_that_was_there_ends_and_a_pod_that_was_scheduled_begins() {
        let pod = |name: &str| (Workload::Inference, name.to_owned());
        let at = |second, what| Event { second, what };
        let ((workload, old), (_, new)) = (pod("old"), pod("new"));
        let events = [
            at(0.0, EventKind::NodeDies),
            at(40.0, EventKind::PodUnready { workload, pod: old.clone() }),
            at(70.0, EventKind::PodDeleted { workload, pod: old }),
            at(71.0, EventKind::PodScheduled { workload, pod: new.clone(), node: "gpu-1".to_owned() }),
            at(80.0, EventKind::PodReady { workload, pod: new }),
        ];
        let axis = Axis { from: -8.0, until: 100.0 };
        let stages = |name| match pod_row(&events, name, "gpu-0", axis) {
            Row::Bars { label, spans } => {
                (label, spans.iter().map(|span| (span.from, span.until, span.stage)).collect::<Vec<_>>())
            }
            Row::Heading { .. } => panic!("no bars"),
        };
        let old = vec![
            (-8.0, 0.0, PodStage::Serves),
            (0.0, 40.0, PodStage::Silent),
            (40.0, 70.0, PodStage::Unready),
            (70.0, 100.0, PodStage::Terminating),
        ];
        assert_eq!(stages("old"), ("pod on gpu-0".to_owned(), old));
        let new = vec![(71.0, 80.0, PodStage::Loads), (80.0, 100.0, PodStage::Serves)];
        assert_eq!(stages("new"), ("new pod, on gpu-1".to_owned(), new));
    }
}
