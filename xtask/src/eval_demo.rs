//! `cargo xtask eval-demo`: a real harness asks two servers, whose right answers are planted. The eval-runner reduces and
//! pairs its files, and the counts must be the planted ones. With `--url` it asks a server of the user, whose answers are
//! not known before.
//!
//! Without a cluster: the runner is started as in its pods, and the counts are judged as by the evaluation-controller.
//! Only the Python environment is kept (`python.rs`).
#![expect(clippy::print_stdout, reason = "what this command prints is what it is for")]

mod harness;
mod planted;
mod questions;
mod report;
mod runner;
mod server;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use api::launcher::evaluator::{API_KEY, BASELINE, CANDIDATE, CONTROL, Pair, commands, options};
use comparison::{Budget, Conclusion, Confidence, Counts, Evidence, Rules, Verdict, conclude, is_unstable};

use crate::{
    python::Environment,
    steps::{cargo, succeed, target_folder},
};
use harness::{Harness, TASK};
use planted::{ASKED_AGAIN, Model, QUESTIONS, Side, VERDICTS};
use runner::{Ended, GRACE, Runner};
use server::{KEY, Server};

/// Verdicts about models whose answers are not planted, in points.
const BUDGETS: [&str; 2] = ["5.0", "1.0"];
/// 5 to 10 s on an idle machine, most of it to import packages, and minutes on a busy one.
const ASKED_WITHIN: Duration = Duration::from_secs(600);
/// A model on a CPU may think for long.
const USER_SERVER_ANSWERS_WITHIN: Duration = Duration::from_secs(4 * 3_600);
const PAIRED_WITHIN: Duration = Duration::from_secs(60);
/// That of a user is ready before.
const SERVER_SECONDS: &str = "60";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program that asks the questions
    #[arg(long, value_enum, default_value_t = Harness::Evalscope)]
    harness: Harness,
    /// OpenAI API that is asked in place of the two servers with planted answers, such as http://127.0.0.1:8000/v1. Its key is
    /// in the variable EVAL_API_KEY [default: none]
    #[arg(long, requires_all = ["baseline", "candidate"], conflicts_with = "harness")]
    url: Option<String>,
    /// The name of the baseline at --url
    #[arg(long, requires = "url")]
    baseline: Option<String>,
    /// The name of the candidate at --url
    #[arg(long, requires = "url")]
    candidate: Option<String>,
}

/// Two models of a server of the user.
struct UserServer<'a> {
    url: &'a str,
    baseline: &'a str,
    candidate: &'a str,
}

impl Args {
    fn user_server(&self) -> Option<UserServer<'_>> {
        let (url, baseline) = (self.url.as_deref()?, self.baseline.as_deref()?);
        Some(UserServer { url, baseline, candidate: self.candidate.as_deref()? })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let began = Instant::now();
    let environment = args.harness.ensure()?;
    let environment_after = began.elapsed();
    succeed(&mut cargo(["build", "--locked", "--package", "xtask", "--package", "eval-runner"]))?;
    let program = target_folder()?.join("debug/eval-runner");
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    let user = args.user_server();
    tokio.block_on(play(args.harness, &environment, program, user.as_ref()))?;
    let result = if user.is_some() { "the answers are paired" } else { "all counts are the planted ones" };
    println!(
        "\n{result}; {:.0} s in all, {:.0} s of them for the Python environment",
        began.elapsed().as_secs_f64(),
        environment_after.as_secs_f64()
    );
    Ok(())
}

async fn play(
    harness: Harness,
    environment: &Environment,
    program: PathBuf,
    user: Option<&UserServer<'_>>,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("failed to create a folder for the evaluation")?;
    let (answers_within, key) = match user {
        Some(_) => (USER_SERVER_ANSWERS_WITHIN, key_of_user()?),
        None => (ASKED_WITHIN, KEY.to_owned()),
    };
    let mut runner = Runner::new(program, folder.path(), key.clone())?;
    let evaluation = Evaluation {
        answers_within,
        key,
        harness,
        program: environment.program(harness.as_str()),
        questions: folder.path().join("questions"),
        output: folder.path().join("evaluation"),
    };
    questions::write_all(harness, &evaluation.questions)?;
    fs::create_dir(&evaluation.output).context("failed to create the folder of the evaluation")?;
    let (title, release) = (harness.title(), harness.release());
    if let Some(user) = user {
        println!("\n{title} {release} asks two models of {} {QUESTIONS} questions:\n", user.url);
        return evaluation.play_with(&mut runner, user).await;
    }
    let baseline = Server::listen(&[Model::Base]).await?;
    let candidates = Server::listen(&[Model::AsGood, Model::Worse]).await?;
    let urls = [baseline.url.clone(), candidates.url.clone()];
    println!(
        "\n{title} {release} asks {QUESTIONS} questions; two servers have planted answers; counted/planted:\n"
    );
    tokio::select! {
        played = evaluation.play(&mut runner, &urls) => played,
        ended = baseline.serve() => ended,
        ended = candidates.serve() => ended,
    }
}

/// An evaluation of one or two candidates, one after the other, with one baseline.
struct Evaluation {
    answers_within: Duration,
    key: String,
    harness: Harness,
    program: PathBuf,
    questions: PathBuf,
    output: PathBuf,
}

/// The counts of a candidate, and of the null control beside it.
struct Paired {
    counted: Counts,
    control: Counts,
    took: Duration,
}

impl Evaluation {
    async fn play(&self, runner: &mut Runner, [baseline, candidates]: &[String; 2]) -> anyhow::Result<()> {
        println!("{}", report::heading_of_sides());
        self.ask_planted(runner, BASELINE, Model::Base, baseline).await?;
        self.ask_planted(runner, CONTROL, Model::Base, baseline).await?;
        let mut pairs = Vec::new();
        for model in [Model::AsGood, Model::Worse] {
            // Its scores replace those of the candidate before.
            self.ask_planted(runner, CANDIDATE, model, candidates).await?;
            pairs.push((model, self.pair(runner).await?));
        }
        println!("\n{}", report::heading_of_pairs());
        for (model, paired) in &pairs {
            let (counted, planted) = (paired.counted, model.counts());
            println!("{}", report::pair(model.as_str(), counted, Some(planted), Some(paired.took)));
            ensure!(counted == planted, "the counts of {} are not the planted ones", model.as_str());
        }
        for (_, paired) in pairs.iter().take(1) {
            println!("{}", report::pair(CONTROL, paired.control, Some(planted::CONTROL), None));
        }
        let is_planted = pairs.iter().all(|(_, paired)| paired.control == planted::CONTROL);
        ensure!(is_planted, "the counts of the null control are not the planted ones");
        judge(&pairs)?;
        check_key(&self.output, &self.key)
    }

    async fn play_with(&self, runner: &mut Runner, user: &UserServer<'_>) -> anyhow::Result<()> {
        println!("{}", report::heading_of_sides());
        for (side, model) in
            [(BASELINE, user.baseline), (CONTROL, user.baseline), (CANDIDATE, user.candidate)]
        {
            let (counted, ended) = self.ask(runner, side, model, user.url).await?;
            println!("{}", report::side(side, model, counted, None, &ended));
        }
        let paired = self.pair(runner).await?;
        println!("\n{}", report::heading_of_pairs());
        println!("{}", report::pair(user.candidate, paired.counted, None, Some(paired.took)));
        println!("{}", report::pair(CONTROL, paired.control, None, None));
        println!("\n{}", report::heading_of_verdicts());
        for budget in BUDGETS {
            concluded(user.candidate, budget, &paired)?;
        }
        println!("{}", noise(&paired));
        check_key(&self.output, &self.key)
    }

    async fn ask_planted(
        &self,
        runner: &mut Runner,
        side: &str,
        model: Model,
        url: &str,
    ) -> anyhow::Result<()> {
        let planted = if side == CONTROL { model.side(ASKED_AGAIN, 1) } else { model.side(QUESTIONS, 0) };
        let (counted, ended) = self.ask(runner, side, model.as_str(), url).await?;
        println!("{}", report::side(side, model.as_str(), counted, Some(planted), &ended));
        ensure!(counted == planted, "the answers of {} are not the planted ones", model.as_str());
        Ok(())
    }

    /// One model answers the test set, or the control's part of it.
    async fn ask(
        &self,
        runner: &mut Runner,
        side: &str,
        model: &str,
        url: &str,
    ) -> anyhow::Result<(Side, Ended)> {
        let is_control = side == CONTROL;
        let mut arguments = vec![
            option(options::OUTPUT_DIR, &self.output),
            option(options::SIDE, side),
            option(options::TEST_SET, TASK),
            option(options::IDENTITY, model),
            option(options::DATASET_PATH, &self.questions),
            option(options::URL, url),
            option(options::MODEL, model),
            option(options::SERVER_SECONDS, SERVER_SECONDS),
            option(options::GRACE_SECONDS, GRACE.as_secs().to_string()),
        ];
        arguments.extend(self.harness.options());
        arguments.extend(is_control.then(|| option(options::AT_MOST, ASKED_AGAIN.to_string())));
        arguments.extend([OsString::from("--"), self.program.clone().into()]);
        let what = format!("asking {model}");
        let ended = runner.run(&what, commands::RUN, arguments, self.answers_within).await?;
        let found = ended.message.side.as_ref().context("the eval-runner reports no side")?;
        let counted = Side {
            questions: found.questions,
            right: found.right.context("the eval-runner reports no number of right answers")?,
            unreadable: found.unparsed,
        };
        Ok((counted, ended))
    }

    async fn pair(&self, runner: &mut Runner) -> anyhow::Result<Paired> {
        let arguments = vec![
            option(options::OUTPUT_DIR, &self.output),
            option(options::TEST_SET, TASK),
            option(options::CONTROL, TASK),
        ];
        let ended = runner.run("pairing", commands::PAIR, arguments, PAIRED_WITHIN).await?;
        let [pair] = &ended.message.pairs[..] else {
            anyhow::bail!("the eval-runner reports {} pairs of one test set", ended.message.pairs.len())
        };
        let control = ended.message.control.as_ref().context("the eval-runner reports no null control")?;
        Ok(Paired { counted: counts(pair)?, control: counts(control)?, took: ended.took })
    }
}

fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut option = OsString::from(format!("--{name}="));
    option.push(value);
    option
}

fn counts(pair: &Pair) -> anyhow::Result<Counts> {
    let Pair { both_right, only_baseline, only_candidate, both_wrong, graded } = pair;
    ensure!(graded.is_none(), "the eval-runner reports scores between right and wrong");
    Ok(Counts {
        both_right: *both_right,
        only_baseline: *only_baseline,
        only_candidate: *only_candidate,
        both_wrong: *both_wrong,
    })
}

/// As `plan/verdict.rs` of the evaluation-controller does it, with several budgets.
fn judge(pairs: &[(Model, Paired)]) -> anyhow::Result<()> {
    println!("\n{}", report::heading_of_verdicts());
    for (model, budget, expected) in VERDICTS {
        let found = pairs.iter().find(|(paired, _)| *paired == model);
        let (_, paired) = found.with_context(|| format!("{} was not asked", model.as_str()))?;
        let verdict = concluded(model.as_str(), budget, paired)?;
        ensure!(verdict == expected, "the verdict is {verdict}, and {expected} was expected");
    }
    if let Some((_, paired)) = pairs.first() {
        println!("{}", noise(paired));
    }
    Ok(())
}

/// As the eval-runner reads it; empty: none.
fn key_of_user() -> anyhow::Result<String> {
    match env::var(API_KEY) {
        Ok(key) => Ok(key.trim().to_owned()),
        Err(env::VarError::NotPresent) => Ok(String::new()),
        Err(env::VarError::NotUnicode(_)) => bail!("the variable {API_KEY} is not UTF-8"),
    }
}

/// Prints the verdict with this budget.
fn concluded(model: &str, budget: &str, paired: &Paired) -> anyhow::Result<Verdict> {
    let confidence = Confidence::DEFAULT;
    let rules = Rules { budget: Budget::parse(budget)?, confidence, minimum: None };
    let unstable = is_unstable(&Evidence::Binary(paired.control), confidence);
    let Conclusion { verdict, sets } = conclude(&[(Evidence::Binary(paired.counted), rules)], unstable);
    let compared = sets.first().context("there is no comparison of the test set")?;
    println!("{}", report::verdict(model, budget, compared, verdict));
    Ok(verdict)
}

fn noise(Paired { control, .. }: &Paired) -> String {
    format!("noise: {} of {} answers change on a rerun", control.flips(), control.n())
}

/// The volume outlives the evaluation, so no file of the runner or of the harness may have the key.
fn check_key(folder: &Path, key: &str) -> anyhow::Result<()> {
    // A short one is a part of other words.
    const SHORTEST: usize = 12;
    if key.len() < SHORTEST {
        return Ok(());
    }
    let read = |path: &Path| format!("failed to read {}", path.display());
    for entry in fs::read_dir(folder).with_context(|| read(folder))? {
        let path = entry.with_context(|| read(folder))?.path();
        if path.is_dir() {
            check_key(&path, key)?;
        } else {
            let bytes = fs::read(&path).with_context(|| read(&path))?;
            let has_key = bytes.windows(key.len()).any(|part| part == key.as_bytes());
            ensure!(!has_key, "{} has the API key", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_found_in_any_file_below_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("work/logs");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("log"), "harmless").unwrap();
        check_key(folder.path(), KEY).unwrap();
        fs::write(deep.join("settings"), format!("api_key: {KEY}\n")).unwrap();
        let refused = check_key(folder.path(), KEY).unwrap_err().to_string();
        assert!(refused.contains("work/logs/settings has the API key"), "{refused}");
    }
}
