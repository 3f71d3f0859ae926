//! Pairs the scores of two sides by question. It decides nothing: a verdict needs the budget, which the controller has.
//!
//! A request that has failed left no answer, and counts as wrong: as the lowest score of both sides if that is negative.
//! A question that only one side has, beyond the failed requests of the other one, is unpaired, and is left out.

use std::iter::Peekable;

use api::launcher::evaluator::{self as contract, ExitCode, Message};
use comparison::bootstrap::{self, compared};

use crate::{
    cli::{self, Side},
    fault::Fault,
    run::{MOST_MISSING, is_more},
    scores::{self, Header, RIGHT, Record, Scores},
};

/// The most test sets whose results a termination message can hold.
const MOST_TEST_SETS: usize = 16;

pub(crate) fn pair(wanted: &cli::Pair) -> Result<Message, Fault> {
    if wanted.test_sets.len() > MOST_TEST_SETS {
        return Err(Fault::usage(format!("there are more than {MOST_TEST_SETS} test sets")));
    }
    let paired = |name: &String, other| Ok(result(&paired(wanted, name, other)?, wanted));
    Ok(Message {
        pairs: wanted
            .test_sets
            .iter()
            .map(|name| paired(name, Side::Candidate))
            .collect::<Result<_, Fault>>()?,
        control: wanted.control.as_ref().map(|name| paired(name, Side::Control)).transpose()?,
        ..Message::default()
    })
}

/// The scores of all questions of a test set.
fn paired(wanted: &cli::Pair, test_set: &str, other: Side) -> Result<Vec<bootstrap::Pair>, Fault> {
    let read = |side| {
        let place = scores::path(&wanted.output_dir, side, test_set);
        scores::read(&place).map_err(|error| error.fault(&place))
    };
    let (baseline, candidate) = (read(Side::Baseline)?, read(other)?);
    let failed = |what: String| {
        Fault::new(ExitCode::PairingFailed, format!("baseline and {} of {test_set}: {what}", other.as_str()))
    };
    check_settings(&baseline.header, &candidate.header).map_err(failed)?;
    let all = united(&baseline, &candidate, other);
    let questions = all.pairs.len() as u64 + all.unpaired;
    if is_more(all.unpaired, questions, MOST_MISSING) || all.pairs.is_empty() {
        let unpaired = all.unpaired;
        return Err(failed(format!(
            "{unpaired} of {questions} questions have an answer on one side only; both must be asked the same ones"
        )));
    }
    Ok(all.pairs)
}

fn check_settings(baseline: &Header, candidate: &Header) -> Result<(), String> {
    if baseline.settings != candidate.settings {
        return Err("they were asked with different settings; create the evaluation again".to_owned());
    }
    // A version that could not be read says nothing.
    let versions = [baseline, candidate].map(|header| header.side.harness_version.as_str());
    let differ = versions[0] != versions[1] && versions.iter().all(|version| !version.is_empty());
    if differ || baseline.side.metric != candidate.side.metric {
        return Err(format!(
            "they have different harnesses: version {:?} with score {:?}, and version {:?} with score {:?}",
            baseline.side.harness_version,
            baseline.side.metric,
            candidate.side.harness_version,
            candidate.side.metric
        ));
    }
    Ok(())
}

/// The questions of both sides.
#[derive(Debug, Default)]
struct United {
    pairs: Vec<bootstrap::Pair>,
    unpaired: u64,
}

fn united(baseline: &Scores, candidate: &Scores, other: Side) -> United {
    let mut united = United::default();
    let mut failed = [baseline, candidate].map(|scores| scores.header.side.failed);
    let [of_baseline, of_candidate] = &mut failed;
    let worst = scores::worst(&baseline.records).min(scores::worst(&candidate.records));
    let [mut left, mut right] = [baseline, candidate].map(|scores| scores.records.iter().peekable());
    while let Some(place) = [&mut left, &mut right].into_iter().filter_map(first).min() {
        let [one, two] = [&mut left, &mut right].map(|records| next_at(records, place));
        match (one, two) {
            (Some(one), Some(two)) => united.add(one.group, one.score, two.score),
            // The control has a part of the questions.
            (Some(_), None) if other == Side::Control => {}
            // What the baseline lost is no answer that has changed.
            (None, Some(_)) if other == Side::Control && taken(of_baseline) => {}
            (Some(one), None) if taken(of_candidate) => united.add(one.group, one.score, worst),
            (None, Some(two)) if taken(of_baseline) => united.add(two.group, worst, two.score),
            (Some(_), None) | (None, Some(_)) => united.unpaired += 1,
            (None, None) => {}
        }
    }
    if other != Side::Control {
        // What is left of both has failed on both sides. Such questions have no key.
        for number in 0..failed[0].min(failed[1]) {
            united.add(u64::MAX - number, worst, worst);
        }
    }
    united
}

type Place = ([u8; 16], u32);

fn first<'r>(records: &mut Peekable<impl Iterator<Item = &'r Record>>) -> Option<Place> {
    records.peek().map(|record| (record.key, record.index))
}

fn next_at<'r>(records: &mut Peekable<impl Iterator<Item = &'r Record>>, place: Place) -> Option<&'r Record> {
    records.next_if(|record| (record.key, record.index) == place)
}

/// Takes one of a number, if there is one.
fn taken(number: &mut u64) -> bool {
    let is_there = *number > 0;
    *number -= u64::from(is_there);
    is_there
}

impl United {
    fn add(&mut self, group: u64, baseline: i64, candidate: i64) {
        self.pairs.push(bootstrap::Pair { group, baseline, candidate });
    }
}

/// Counts, if each answer is right or wrong and each question was asked once. Otherwise the result of a bootstrap.
fn result(pairs: &[bootstrap::Pair], wanted: &cli::Pair) -> contract::Pair {
    let is_binary = pairs
        .iter()
        .all(|pair| [pair.baseline, pair.candidate].iter().all(|score| [0, RIGHT].contains(score)));
    let mut groups: Vec<u64> = pairs.iter().map(|pair| pair.group).collect();
    groups.sort_unstable();
    groups.dedup();
    if is_binary && groups.len() == pairs.len() {
        let count = |baseline, candidate| {
            pairs.iter().filter(|pair| (pair.baseline, pair.candidate) == (baseline, candidate)).count()
                as u64
        };
        return contract::Pair {
            both_right: count(RIGHT, RIGHT),
            only_baseline: count(RIGHT, 0),
            only_candidate: count(0, RIGHT),
            both_wrong: count(0, 0),
            graded: None,
        };
    }
    let comparison::Graded { n, groups, baseline, candidate, difference, low, high, candidate_low, p_value } =
        compared(&mut pairs.to_vec(), u64::from(wanted.seed), wanted.confidence);
    let graded = contract::Graded {
        n,
        groups,
        baseline: baseline.to_string(),
        candidate: candidate.to_string(),
        difference: difference.to_string(),
        low: low.to_string(),
        high: high.to_string(),
        candidate_low: candidate_low.to_string(),
        p_value: p_value.to_string(),
    };
    contract::Pair { graded: Some(graded), ..contract::Pair::default() }
}
