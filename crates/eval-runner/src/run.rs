//! Asks one side one test set: from the checks to the file of scores.
//!
//! A file of scores of the same identity and settings is the result of an earlier run. Then nothing is started.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use api::launcher::evaluator::{ExitCode, Message};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Builder;

use crate::{
    answers::{self, Answers},
    cli::{Key, Run, Side},
    fault::Fault,
    harness::{self, Order},
    log::Log,
    message::note,
    process::{self, End, SharedLog, Signals, locked, shown, stopped},
    questions::questions,
    scores::{self, Header, RIGHT, Record, StoredSide, Unreadable},
    server::Server,
};

/// Of all questions, so many thousandths may have a failed request.
const MOST_FAILED: u64 = 10;
/// Of all questions, so many thousandths may be missing without a reason.
pub(crate) const MOST_MISSING: u64 = 5;

pub(crate) fn run(wanted: &Run, key: &Key) -> Result<Message, Fault> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::local("start", "the runtime", &error))?;
    let result = runtime.block_on(ask(wanted, key));
    runtime.shutdown_background();
    result
}

async fn ask(wanted: &Run, key: &Key) -> Result<Message, Fault> {
    let mut signals =
        Signals::listen().map_err(|error| Fault::local("start", "the signal handlers", &error))?;
    let place = scores::path(&wanted.output_dir, wanted.side, &wanted.test_set);
    let settings = settings(wanted);
    let fingerprint = fingerprint(wanted, &settings);
    if let Some(message) = finished(&place, &fingerprint)? {
        return Ok(message);
    }
    let questions = questions(wanted)?;
    let limit = limit(wanted)?;
    let server = Server::new(&wanted.url, key, wanted.time_divisor)?;
    note(&format!("waits for the server {}", wanted.url));
    let (version, model) = tokio::select! {
        biased;
        () = signals.stop() => return Err(stopped()),
        checked = async {
            let version = process::version(version_command(wanted)).await?;
            Ok::<_, Fault>((version, server.model(wanted.model.as_deref(), wanted.server_within).await?))
        } => checked?,
    };
    let work = empty_work(wanted)?;
    let order = Order { questions: &questions, model: &model, url: server.url(), limit, work: &work };
    let command = harness::command(wanted, &order, key)?;
    note(&format!(
        "{} asks {} the questions of {}",
        wanted.harness.as_str(),
        wanted.side.as_str(),
        wanted.test_set
    ));
    let log = SharedLog::default();
    let waits = (wanted.server_within, wanted.grace);
    let end = process::run(command, key, &log, &mut signals, &server, waits).await?;
    let gone = match &end {
        End::Exited(_) => server.fails().await,
        End::Stopped | End::ServerLost(_) => None,
    };
    let log = locked(&log);
    let failed = |fault: Fault| fault.with_tail(log.tail());
    check_end(&end, gone.as_deref(), &log, wanted).map_err(failed)?;
    check_any(&log, gone.as_deref(), wanted).map_err(failed)?;
    let answers =
        answers::read(wanted.harness, &work, &wanted.dataset, wanted.metric.as_deref()).map_err(failed)?;
    let in_files = questions.asked(limit);
    let counted = counted(&answers, &log, in_files, gone.as_deref(), wanted).map_err(failed)?;
    let version = answers.harness_version.clone().unwrap_or(version);
    let header = Header {
        fingerprint,
        settings,
        records: answers.records.len() as u64,
        side: stored(wanted, &answers, counted, version),
    };
    let sum = scores::write(&place, &header, &answers.records)?;
    note(&format!("{} has {} questions", place.display(), counted.questions));
    Ok(Message { side: Some(header.message(sum, false)), ..Message::default() })
}

fn version_command(wanted: &Run) -> tokio::process::Command {
    let mut command = harness::program(wanted);
    command.arg("--version");
    command
}

/// The result of an earlier run. A file of another run, or one that is broken, is none.
fn finished(place: &Path, fingerprint: &str) -> Result<Option<Message>, Fault> {
    match scores::read(place) {
        Ok(scores) if scores.header.fingerprint == fingerprint => {
            note(&format!("{} is complete already", place.display()));
            Ok(Some(Message { side: Some(scores.header.message(scores.sha256, true)), ..Message::default() }))
        }
        Ok(_) => {
            note(&format!("{} has another model or other settings: it is replaced", place.display()));
            Ok(None)
        }
        Err(Unreadable::Missing) => Ok(None),
        Err(Unreadable::Broken(what)) => {
            note(&format!("{} is broken ({what}): it is replaced", place.display()));
            Ok(None)
        }
        Err(Unreadable::Io(error)) => Err(Fault::volume("read", place, &error)),
    }
}

/// What must be equal on both sides.
fn settings(wanted: &Run) -> String {
    let path = wanted.dataset_path.as_deref().map(Path::to_string_lossy).unwrap_or_default();
    let numbers =
        [wanted.seed, wanted.max_tokens.unwrap_or(0), wanted.concurrency].map(|number| number.to_string());
    let [seed, max_tokens, concurrency] = &numbers;
    let parts = [
        wanted.harness.as_str(),
        &wanted.dataset,
        &path,
        wanted.metric.as_deref().unwrap_or_default(),
        seed,
        max_tokens,
        concurrency,
        &wanted.temperature,
        wanted.endpoint.as_str(),
    ];
    hash(parts.into_iter().chain(wanted.subsets.iter().map(String::as_str)))
}

fn fingerprint(wanted: &Run, settings: &str) -> String {
    let limits = [wanted.limit, wanted.at_most].map(|limit| limit.unwrap_or(0).to_string());
    hash([wanted.side.as_str(), wanted.identity.as_str(), settings, &limits[0], &limits[1]])
}

fn hash<'t>(parts: impl IntoIterator<Item = &'t str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
        hash.update([0xff]);
    }
    scores::hex(&hash.finalize())
}

/// Questions of each subset. Of the control: so many that all subsets together have at most as many as wanted, and
/// one each at least.
fn limit(wanted: &Run) -> Result<Option<u64>, Fault> {
    let Some(at_most) = wanted.at_most else { return Ok(wanted.limit) };
    let place = scores::path(&wanted.output_dir, Side::Baseline, &wanted.test_set);
    let baseline = scores::read(&place).map_err(|error| error.fault(&place))?;
    let of_each = (at_most / baseline.header.side.subsets.max(1)).max(1);
    Ok(Some(wanted.limit.map_or(of_each, |limit| limit.min(of_each))))
}

/// What a run that was killed has left must not become part of a result. A pod of a lost node may still write into
/// its own folder, which has the name of the pod.
fn empty_work(wanted: &Run) -> Result<PathBuf, Fault> {
    let own = || wanted.output_dir.join("work").join(wanted.side.as_str()).join(&wanted.test_set);
    let work = wanted.work_dir.clone().unwrap_or_else(own);
    match fs::remove_dir_all(&work) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            // A volume that is mounted there cannot be removed, and is empty then.
            let is_empty = fs::read_dir(&work).is_ok_and(|mut entries| entries.next().is_none());
            if !is_empty {
                return Err(Fault::volume("empty", &work, &error));
            }
        }
        Ok(()) | Err(_) => {}
    }
    let work = work.join(rustix::system::uname().nodename().to_string_lossy().as_ref());
    fs::create_dir_all(&work).map_err(|error| Fault::volume("create", &work, &error))?;
    Ok(work)
}

fn check_end(end: &End, gone: Option<&str>, log: &Log, wanted: &Run) -> Result<(), Fault> {
    match end {
        End::Stopped => Err(stopped()),
        End::ServerLost(cause) => Err(server_failed(wanted, cause)),
        End::Exited(status) if status.success() => Ok(()),
        End::Exited(status) => {
            // A harness that was killed has not ended by itself.
            if let Some((code, line)) = log.cause().filter(|_| status.code().is_some() && gone.is_none()) {
                return Err(Fault::new(code, format!("{}: {line}{}", wanted.dataset, fix(code))));
            }
            if let Some(cause) = gone {
                return Err(server_failed(wanted, cause));
            }
            let (name, status) = (wanted.harness.as_str(), shown(*status));
            let last = log.last().unwrap_or("it has printed nothing");
            Err(Fault::new(ExitCode::HarnessFailed, format!("{name} ended with {status}: {last}")))
        }
    }
}

/// What the line of the harness does not say.
fn fix(code: ExitCode) -> &'static str {
    match code {
        ExitCode::TestSetUnsupported => "; use a test set that judges generated answers",
        ExitCode::CodeExecutionForbidden => "; set allowCodeExecution, or leave it out",
        ExitCode::Stopped
        | ExitCode::DatasetNotFound
        | ExitCode::DatasetOnlineForbidden
        | ExitCode::ServerFailed
        | ExitCode::HarnessFailed
        | ExitCode::HarnessNotFound
        | ExitCode::OutputUnreadable
        | ExitCode::TooManyErrors
        | ExitCode::PairingFailed
        | ExitCode::OutOfSpace
        | ExitCode::VolumeUnusable
        | ExitCode::Usage => "",
    }
}

fn server_failed(wanted: &Run, cause: &str) -> Fault {
    let message = format!("the server {} does not answer any more: {cause}; see its pods", wanted.url);
    Fault::new(ExitCode::ServerFailed, message)
}

/// A harness that ignores failed questions also exits with 0 if all of them have failed.
fn check_any(log: &Log, gone: Option<&str>, wanted: &Run) -> Result<(), Fault> {
    if log.failed() == 0 || log.announced() != Some(log.failed()) {
        return Ok(());
    }
    if let Some(cause) = gone {
        return Err(server_failed(wanted, cause));
    }
    if log.lacks_nltk_data() {
        let message =
            "the image has no punkt_tab of nltk, which this score needs: add it to the image, with NLTK_DATA";
        return Err(Fault::new(ExitCode::HarnessNotFound, message));
    }
    let (questions, side) = (log.failed(), wanted.side.as_str());
    let message = format!("all {questions} questions of {side} have failed: {}", log.failure());
    Err(Fault::new(ExitCode::TooManyErrors, message))
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    /// With those that have no answer.
    questions: u64,
    failed: u64,
    /// Neither the harness nor the files say how many questions there are.
    is_unchecked: bool,
}

/// How many questions were asked, and how many of them have no answer. A harness may exit with 0 and have lost most
/// of them, and the same ones of both models. `in_files`: as many as the files of the test set have.
fn counted(
    answers: &Answers,
    log: &Log,
    in_files: Option<u64>,
    gone: Option<&str>,
    wanted: &Run,
) -> Result<Counted, Fault> {
    let answered = answers.records.len() as u64;
    let known = answers.asked.or(log.announced()).or(in_files);
    let questions = known.unwrap_or(answered + log.failed()).max(answered);
    let missing = questions - answered;
    let unexplained = missing.saturating_sub(log.failed());
    let (side, name) = (wanted.side.as_str(), wanted.harness.as_str());
    if let Some(cause) = gone.filter(|_| is_more(missing, questions, MOST_FAILED)) {
        let message = format!(
            "the server {} does not answer any more, after {answered} of {questions} questions: {cause}",
            wanted.url
        );
        return Err(Fault::new(ExitCode::ServerFailed, message));
    }
    if is_more(unexplained, questions, MOST_MISSING) {
        let message = format!(
            "{name} ended without an error, but its files have {answered} of {questions} answers of {side}"
        );
        return Err(Fault::new(ExitCode::HarnessFailed, message));
    }
    if is_more(missing, questions, MOST_FAILED) {
        let message = format!("{missing} of {questions} requests of {side} have failed: {}", log.failure());
        return Err(Fault::new(ExitCode::TooManyErrors, message));
    }
    let unparsed = unparsed(&answers.records);
    if unparsed == answered {
        let message = format!(
            "{name} could read none of the {answered} answers of {side}; check the chat template of its server"
        );
        return Err(Fault::new(ExitCode::OutputUnreadable, message));
    }
    Ok(Counted { questions, failed: missing, is_unchecked: known.is_none() })
}

/// More than so many thousandths.
pub(crate) fn is_more(part: u64, of: u64, thousandths: u64) -> bool {
    u128::from(part) * 1_000 > u128::from(of) * u128::from(thousandths)
}

fn unparsed(records: &[Record]) -> u64 {
    records.iter().filter(|record| !record.is_parsed).count() as u64
}

fn stored(wanted: &Run, answers: &Answers, counted: Counted, harness_version: String) -> StoredSide {
    let scores = || answers.records.iter().map(|record| record.score);
    let is_binary = scores().all(|score| score == 0 || score == RIGHT);
    // Bounded by the number of records and the largest score.
    let failed = scores::worst(&answers.records) * counted.failed as i64;
    let sum = scores().sum::<i64>() + failed;
    let mean = sum as f64 / counted.questions.max(1) as f64;
    StoredSide {
        questions: counted.questions,
        failed: counted.failed,
        unparsed: unparsed(&answers.records),
        unchecked: counted.is_unchecked,
        subsets: answers.subsets,
        right: is_binary.then(|| scores().filter(|score| *score == RIGHT).count() as u64),
        mean: comparison::Millionths::new(mean.round() as i64).to_string(),
        metric: answers.metric.clone(),
        harness: wanted.harness.as_str().to_owned(),
        harness_version,
    }
}
