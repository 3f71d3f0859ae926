//! Scenes of all of them.

use api::aiinference::analysis::AnalysisPrometheus;

use super::*;

mod late;
mod left_out;
mod missing;
mod queries;
mod series;

fn series(of: &[(u64, f64)]) -> Counters {
    of.iter().copied().collect()
}

/// Both versions at this time: requests and bad ones so far, of stable and of the candidate.
fn looked(stable: (f64, f64), candidate: Option<(f64, f64)>) -> Answered {
    let answers = |(requests, bad): (f64, f64)| Answers {
        requests: Answer { before: None, now: series(&[(1, requests)]) },
        bad: Answer { before: None, now: series(&[(1, bad)]) },
    };
    let read = Tracks { stable: answers(stable), candidate: candidate.map(answers).unwrap_or_default() };
    Answered { queries: queries("b"), read: Ok(read) }
}

/// A look that also has the values of the beginning.
fn before(stable: (f64, f64), candidate: (f64, f64), mut looked: Answered) -> Answered {
    if let Ok(Tracks { stable: of_stable, candidate: of_candidate }) = &mut looked.read {
        for (answers, (requests, bad)) in [(of_stable, stable), (of_candidate, candidate)] {
            for (answer, value) in [(&mut answers.requests, requests), (&mut answers.bad, bad)] {
                answer.before = Some([Counters::new(), series(&[(1, value)])]);
            }
        }
    }
    looked
}

/// A step that began at 100 with these counters.
fn counting(stable: (f64, f64), candidate: Option<(f64, f64)>) -> Counting {
    let mut begun = before(stable, candidate.unwrap_or_default(), looked(stable, candidate));
    if let (Ok(Tracks { candidate: none, .. }), None) = (&mut begun.read, candidate) {
        *none = Answers::default();
    }
    let mut counting = Counting::default();
    assert_eq!(counting.found(&begun, (100, 101), 1), (Found::Pooled, None));
    counting
}

fn counts(found: (Found, Option<String>)) -> Option<[(u64, u64); 2]> {
    let (Found::Counted { flows, .. }, None) = found else { return None };
    Some([flows.stable, flows.candidate].map(|flow| (flow.ended.requests(), flow.ended.bad())))
}

fn failed() -> Answered {
    Answered { queries: queries("b"), read: Err("no server".to_owned()) }
}

fn queries(bad: &str) -> Queries {
    Queries {
        prometheus: Box::new(AnalysisPrometheus {
            url: None,
            requests_query: r#"requests{service="$name"}"#.to_owned(),
            bad_requests_query: bad.to_owned(),
            secret_name: None,
            ca_secret_name: None,
        }),
        services: Tracks { stable: "chat".to_owned(), candidate: "chat-canary".to_owned() },
        stable_may_be_silent: false,
    }
}
