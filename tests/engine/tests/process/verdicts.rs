//! Two engines that are scraped and judged as a canary: what the test engine serves under a fault leads to the right verdict.
//!
//! Who scrapes when, and what follows from a verdict, is tested with the inference-controller.

use std::thread;

use engine_metrics::{
    engine::Engine as Kind,
    histogram::Buckets,
    outcomes::{self, Outcomes},
    series::whole_number,
};
use text::exposition::parse;
use verdict::{
    bucket::{self, Bound, Bucket, Mismatch},
    counters::{Counters, Numbers, Scrape, Track},
    interval::{Counts, Flow, Interval, Sample, Tracks},
    judge::{Earlier, Inputs, Judged, Judgement, Reason, Step, Verdict, judge},
    metric::{self, Alpha, Metric, Mode},
};

use crate::{
    load::requests,
    scene::{Engine, VLLM, ask},
};

/// What makes a request a bad one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    Error,
    Repetition,
    /// Its first token came later than after 250 ms.
    FirstToken,
}

impl Bad {
    fn metric(self) -> Metric {
        let kind = match self {
            Self::Error | Self::Repetition => metric::Kind::Failure,
            Self::FirstToken => metric::Kind::Latency,
        };
        Metric {
            name: format!("{self:?}"),
            kind,
            mode: Mode::Enforce,
            tolerated: kind.tolerated(),
            limit: None,
            warmup_seconds: Some(0),
        }
    }

    /// What is given as `thresholdMillis`.
    fn bound(self) -> Option<Bound> {
        (self == Self::FirstToken).then(|| Bound::from_millis(250).unwrap())
    }
}

/// Both versions, a pod each.
struct Canary {
    _stable: Engine,
    candidate: Engine,
    ports: [u16; 2],
    /// When the engine of the candidate started.
    started: i64,
    environment: Vec<(&'static str, &'static str)>,
}

/// Before the step.
const BEFORE: i64 = 1_000;
/// When the step began, and each look counts from.
const SINCE: i64 = 2_000;

impl Canary {
    /// The environment is that of the candidate.
    fn start(environment: &[(&'static str, &'static str)]) -> Self {
        let stable = Engine::start(VLLM, &[]);
        let candidate = Engine::start(VLLM, environment);
        let ports = [stable.ready(), candidate.ready()];
        Self { _stable: stable, candidate, ports, started: BEFORE, environment: environment.to_vec() }
    }

    /// The container of the candidate starts again: its counters begin at 0.
    fn restart(&mut self) {
        self.candidate = Engine::start(VLLM, &self.environment);
        self.ports[1] = self.candidate.ready();
        self.started += 2_000;
    }

    /// Twenty requests to each of them.
    fn ask(&self) {
        let asking = self.ports.map(|port| thread::spawn(move || requests(port)));
        for asked in asking {
            asked.join().unwrap();
        }
    }

    fn outcomes(&self) -> [Outcomes; 2] {
        self.ports.map(|port| {
            let text = ask(port, "GET /metrics", "").unwrap().body;
            outcomes::read(&parse(&text, |series| outcomes::needs(Kind::Vllm, series)), Kind::Vllm).unwrap()
        })
    }
}

/// As a step sees it, one look after the other.
struct Analysis {
    bad: Bad,
    counters: Counters,
    judged: Judged,
    looks: u64,
}

impl Analysis {
    fn begin(bad: Bad) -> Self {
        let judged = Judged::begin(bad.metric(), bad.bound(), Earlier::default(), 20);
        Self { bad, counters: Counters::default(), judged, looks: 0 }
    }

    /// What the look has added, or why it could not count.
    fn look(&mut self, canary: &Canary) -> Result<Tracks<Flow>, Mismatch> {
        self.looks += 1;
        let outcomes = canary.outcomes();
        let found = self.flows(canary, &outcomes);
        let interval = match found {
            Ok(flows) => {
                let ready_pods = Tracks { stable: 1, candidate: 1 };
                Interval::Complete(Sample { flows, ready_pods, age_seconds: 600 })
            }
            Err(_) => Interval::BucketMismatch,
        };
        self.judged = self.judged.clone().observe(&interval, self.bad.bound());
        found
    }

    fn flows(&mut self, canary: &Canary, outcomes: &[Outcomes; 2]) -> Result<Tracks<Flow>, Mismatch> {
        let bound = self.bad.bound();
        if let [Some(stable), Some(candidate)] =
            outcomes.each_ref().map(|outcomes| outcomes.first_token.as_ref())
        {
            let of_stable: Vec<Bucket> =
                stable.iter().map(|(le, count)| Bucket { le, count: whole_number(count) }).collect();
            let of_candidate = bucket::bounds(candidate.iter().map(|(le, _)| le));
            if bound.is_some() {
                bucket::bound(bound, &of_stable, &of_candidate)?;
            }
        }
        let tracks = [(Track::Stable, BEFORE), (Track::Candidate, canary.started)];
        let scrapes = tracks.iter().zip(outcomes).map(|((track, started), outcomes)| Scrape {
            pod: format!("{track:?}"),
            track: *track,
            started: *started,
            numbers: Some(numbers(outcomes, self.bad)),
            may_be_silent: false,
        });
        Ok(self.counters.advance(&scrapes.collect::<Vec<_>>(), SINCE, bound).unwrap())
    }

    fn judge(&self) -> Judgement {
        let step = Step {
            seconds: self.looks * 15,
            min_seconds: 0,
            min_requests: 20,
            interval_seconds: 15,
            alpha: Alpha::ONE_PERCENT,
            steps: 1,
        };
        judge(&Inputs { step, metrics: vec![self.judged.clone()] })
    }

    fn totals(&self) -> [(u64, u64); 2] {
        let Tracks { stable, candidate } = self.judged.evidence.totals;
        [stable, candidate].map(|counts| (counts.requests(), counts.bad()))
    }
}

fn numbers(outcomes: &Outcomes, bad: Bad) -> Numbers {
    let bad = match bad {
        Bad::Error => outcomes.errors.unwrap(),
        Bad::Repetition => outcomes.repetitions.unwrap(),
        Bad::FirstToken => {
            let late = |buckets: &Buckets| {
                let fast = buckets.iter().find(|(le, _)| Bound::from_seconds(*le).ok() == bad.bound());
                outcomes.ended - whole_number(fast.unwrap().1)
            };
            outcomes.first_token.as_ref().map_or(0, late)
        }
    };
    Numbers { ended: Counts::new(outcomes.ended, bad).unwrap(), in_flight: outcomes.in_flight }
}

/// The looks of a canary whose requests go on.
fn after(canary: &Canary, bad: Bad, looks: u32) -> Analysis {
    let mut analysis = Analysis::begin(bad);
    analysis.look(canary).unwrap();
    for _ in 0..looks {
        canary.ask();
        analysis.look(canary).unwrap();
    }
    analysis
}

/// Further looks until the candidate fails, and how many there were. Bad requests of one look weigh little, as they may have
/// one cause.
fn until_it_fails(canary: &Canary, analysis: &mut Analysis) -> u64 {
    const MOST: u64 = 16;
    let mut looks = 0;
    while analysis.judge().verdict != Verdict::Fail && looks < MOST {
        canary.ask();
        analysis.look(canary).unwrap();
        looks += 1;
    }
    assert_eq!(verdict(analysis), (Verdict::Fail, Reason::Alarm), "{:?}", analysis.judge());
    looks
}

fn verdict(analysis: &Analysis) -> (Verdict, Reason) {
    let judgement = analysis.judge();
    (judgement.verdict, judgement.reason)
}

#[test]
fn a_candidate_whose_first_token_takes_three_times_as_long_fails() {
    let canary = Canary::start(&[("ENGINE_ANSWER_MILLISECONDS", "300")]);
    let mut analysis = after(&canary, Bad::FirstToken, 0);
    let requests = 20 * until_it_fails(&canary, &mut analysis);
    assert_eq!(analysis.totals()[1], (requests, requests));
    assert_eq!(analysis.totals()[0].0, requests);
}

#[test]
fn a_candidate_that_repeats_itself_fails_by_that_and_not_by_errors() {
    let canary = Canary::start(&[("ENGINE_FAULT", "repetition-share:40")]);
    let (mut repetitions, mut errors) = (after(&canary, Bad::Repetition, 0), after(&canary, Bad::Error, 0));
    let requests = 20 * until_it_fails(&canary, &mut repetitions);
    assert_eq!(repetitions.totals(), [(requests, 0), (requests, requests * 2 / 5)]);
    errors.look(&canary).unwrap();
    assert_eq!(errors.totals(), [(requests, 0), (requests, 0)]);
    assert_ne!(errors.judge().verdict, Verdict::Fail);
}

#[test]
fn counters_that_begin_anew_hide_no_error_and_make_none() {
    let mut canary = Canary::start(&[("ENGINE_FAULT", "error-share:25")]);
    let mut analysis = after(&canary, Bad::Error, 1);
    canary.restart();
    let requests = 20 + 20 * until_it_fails(&canary, &mut analysis);
    assert_eq!(
        analysis.totals(),
        [(requests, 0), (requests, requests / 4)],
        "what was counted before the restart stays"
    );

    let mut good = Canary::start(&[]);
    let mut analysis = after(&good, Bad::Error, 2);
    good.restart();
    let flows = analysis.look(&good).unwrap();
    assert_eq!((flows.candidate.ended.requests(), flows.candidate.restarts), (0, 1), "nothing is subtracted");
    good.ask();
    analysis.look(&good).unwrap();
    assert_eq!(analysis.totals(), [(60, 0), (60, 0)]);
    assert_ne!(analysis.judge().verdict, Verdict::Fail);
}

#[test]
fn a_candidate_with_other_buckets_is_not_judged_by_latency() {
    let canary = Canary::start(&[("ENGINE_BUCKETS", "other")]);
    let mut analysis = Analysis::begin(Bad::FirstToken);
    for _ in 0..3 {
        canary.ask();
        assert_eq!(analysis.look(&canary).unwrap_err(), Mismatch::NotInCandidate);
    }
    assert_eq!(verdict(&analysis), (Verdict::Inconclusive, Reason::BucketMismatch));
    let errors = after(&canary, Bad::Error, 1);
    assert_eq!(errors.totals(), [(20, 0), (20, 0)], "its errors are");
}
