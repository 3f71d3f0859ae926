//! `cargo xtask bench training`: N TrainingJobs from their creation to Succeeded, and what they cost in CPU time, memory and
//! requests.
//!
//! Two arms, each on a fresh cluster of its own and in the same way, with the same TrainingJobs: a *null writer*, which makes
//! the very claims and Jobs that the controller would make and nothing else; and the *training-controller*. Pods run for
//! a set time and succeed: this meter ends them, because the stages for measurements end none. With `--claims shared` a Job is
//! the only child, as in measurements of other operators.

mod controller_arm;
mod jobs;
mod null_writer;
mod plane;
mod pods;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use tokio::runtime::Runtime;

use self::{
    controller_arm::{Controlled, Rest},
    jobs::{Claims, Setting},
    null_writer::Nulled,
};
use crate::{
    figures::{Figure, medians, table},
    machine::{self, Used},
    plane::{Programs, children::NullWriter, requests::Whose},
    programs::build,
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// TrainingJobs that are created at once
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// Milliseconds for which each pod runs
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    run_time: u64,
    /// Lines of its log that each pod prints in a second, each with a step; without it, 13 in its time
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    lines: Option<u32>,
    /// Where the results go
    #[arg(long, value_enum, default_value_t = Claims::Own)]
    claims: Claims,
    /// Seconds at rest, after all jobs have ended
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(10..=3_600))]
    rest: u64,
    /// Repeats of both arms; medians are printed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// How the null writer writes; POST is the cheapest, and what the controller does
    #[arg(long, value_enum, default_value_t = NullWriter::Post)]
    null_writer: NullWriter,
    /// Program of the controller; `cargo xtask bench` builds the one that images hold
    #[arg(long, env = "BENCH_PROGRAM")]
    controller: PathBuf,
}

/// The name of the controller, of its program and of its ServiceAccount.
const CONTROLLER: &str = "training-controller";
const COUNTED: Whose =
    Whose { controller: CONTROLLER, children: &["jobs", "persistentvolumeclaims", "services"] };
/// Like 32 users at once; more only queue in the API server.
const CONNECTIONS: usize = 32;
/// That an attempt has begun, that it runs, and its end.
const STATUS_WRITES: f64 = 3.0;
/// From this share of the cores on, more work takes more time.
const FULL: f64 = 0.9;

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    // It also serves the logs that the controller reads.
    build(&["--release", "--package", "local-cluster"])?;
    local_cluster::install_crypto_provider();
    let programs = Programs::with(args.controller.clone(), "release")?;
    let setting = Setting {
        count: args.count,
        claims: args.claims,
        run_time: Duration::from_millis(args.run_time),
        lines: args.lines,
        rest: Duration::from_secs(args.rest),
    };
    let mut runs = Vec::new();
    for run in 1..=args.runs {
        runs.push(tokio.block_on(measured(args, &programs, &setting, run))?);
    }
    if runs.len() > 1 {
        let title = format!("{}, medians of {} runs", title(args), runs.len());
        println!("\n{}", table(&title, &medians(&runs)));
    }
    Ok(())
}

fn title(args: &Args) -> String {
    let Args { count, claims, null_writer, .. } = args;
    format!("{count} TrainingJobs, {claims:?} claims, null by {null_writer:?}")
}

async fn measured(
    args: &Args,
    programs: &Programs,
    setting: &Setting,
    run: u32,
) -> anyhow::Result<Vec<Figure>> {
    let begin = machine::condition()?;
    println!("run {run} of {}: null writer; {begin}", args.runs);
    let nulled = null_writer::run(programs, setting, args.null_writer).await?;
    let between = machine::condition()?;
    println!("run {run} of {}: {}; {between}", args.runs, args.controller.display());
    let controlled = controller_arm::run(programs, setting).await?;
    println!("\nrequests of the controller per object, of {}\n{}", args.count, controlled.requests);
    println!("writes of the status: {}", spread(&controlled.requests.status_writes()));
    if !controlled.at_rest.requests.is_empty() {
        println!("requests at rest\n{}", controlled.at_rest.requests);
    }
    println!("null writer: {}", limit(&nulled.burst.busy, machine::cores()));
    println!("controller:  {}", limit(&controlled.burst.busy, machine::cores()));
    println!("begin: {begin}\nend:   {}", machine::condition()?);
    let figures = figures(args, &controlled, &nulled);
    println!("\n{}", table(&title(args), &figures));
    Ok(figures)
}

fn figures(args: &Args, controlled: &Controlled, nulled: &Nulled) -> Vec<Figure> {
    let count = f64::from(args.count);
    let Controlled { burst, succeeded_seconds, requests, at_rest, .. } = controlled;
    let (used, null_used) = (&burst.used, &nulled.burst.used);
    let (per_second, null_per_second) = (count / succeeded_seconds, count / nulled.burst.completed_seconds);
    let each = |requests: usize| requests as f64 / count;
    let ms_each = |seconds: f64| 1e3 * seconds / count;
    let (plane, null_plane) = (ms_each(used.whole_plane_seconds()), ms_each(null_used.whole_plane_seconds()));
    let (all, null_all) = (ms_each(used.measured_seconds()), ms_each(null_used.measured_seconds()));
    let mut figures = vec![
        Figure::new("created -> all Succeeded (null writer: Complete), s", *succeeded_seconds)
            .beside(nulled.burst.completed_seconds),
        Figure::new("created -> last Job Complete, s", burst.completed_seconds)
            .beside(nulled.burst.completed_seconds),
        Figure::new("created -> last Job created, s", burst.created_seconds)
            .beside(nulled.burst.created_seconds),
        Figure::new("jobs per second", per_second).beside(null_per_second),
        Figure::new("  in % of the null writer's", 1e2 * per_second / null_per_second).at_least(90.0),
        Figure::new("  in % of it, if CPU time alone decided", 1e2 * null_all / all),
        Figure::new("CPU of all of them per object, ms", all).beside(null_all),
        Figure::new("CPU of Kubernetes, etcd and KWOK per object, ms", plane).beside(null_plane),
        Figure::new("  times the null writer's", plane / null_plane),
    ];
    for ((name, seconds), (_, null_seconds)) in used.plane_seconds.iter().zip(&null_used.plane_seconds) {
        figures
            .push(Figure::new(format!("  of it {name}"), ms_each(*seconds)).beside(ms_each(*null_seconds)));
    }
    let busy_share = burst.busy.controller_seconds / burst.busy.elapsed_seconds;
    let Rest { seconds: rest_seconds, core_percent, requests: requests_at_rest } = at_rest;
    let children = nulled.children as f64;
    let status_writes = requests.status_writes();
    figures.extend([
        // Beside it, what this meter needs for the writes of the null writer, its watches and the ends of pods.
        Figure::new("CPU of the controller per 1000 objects, s", ms_each(used.controller_seconds))
            .beside(ms_each(null_used.meter_seconds))
            .at_most(2.5),
        Figure::new("CPU of the controller until the last end, % of a core", 1e2 * busy_share),
        Figure::new("resident memory of the controller at its peak, MiB", controlled.peak_mib),
        Figure::new("resident memory of the controller at rest, MiB", controlled.idle_mib).at_most(30.0),
        Figure::new("reconciles per object", controlled.reconciles / count),
        Figure::new("writes of children per object", each(requests.children)).beside(children),
        Figure::new("writes of children and status per object", each(requests.children + requests.status))
            .beside(children)
            .at_most(children + STATUS_WRITES),
        Figure::new("  writes of the status of one object, most", most(&status_writes)),
        Figure::new(
            "  writes of the status of one object per second",
            each(requests.status) / succeeded_seconds,
        ),
        Figure::new("other writes per object", each(requests.other_writes)).at_most(0.0),
        Figure::new("events per object", each(requests.events)),
        Figure::new("GET and LIST per object", each(requests.reads)),
        Figure::new(
            format!("requests in {rest_seconds:.0} s at rest, without Lease and watches"),
            requests_at_rest.total() as f64,
        )
        .at_most(0.0),
        Figure::new("at rest: % of a core", *core_percent),
        Figure::new("cores used by other processes", burst.busy.stranger_cores)
            .beside(nulled.burst.busy.stranger_cores),
        Figure::new("cores used by this meter", burst.busy.meter_cores).beside(nulled.burst.busy.meter_cores),
    ]);
    figures
}

fn most(writes: &BTreeMap<usize, usize>) -> f64 {
    writes.keys().next_back().map_or(0.0, |most| *most as f64)
}

/// How many objects had so many writes.
fn spread(writes: &BTreeMap<usize, usize>) -> String {
    let groups = writes.iter().map(|(writes, objects)| format!("{writes} of {objects} objects"));
    groups.collect::<Vec<_>>().join(", ")
}

/// Who kept the cores busy, and whether they were the limit.
fn limit(used: &Used, cores: usize) -> String {
    let share = |seconds: f64| seconds / used.elapsed_seconds;
    let mut parts: Vec<(&str, f64)> =
        used.plane_seconds.iter().map(|(name, seconds)| (name.as_str(), share(*seconds))).collect();
    parts.extend([
        ("the controller", share(used.controller_seconds)),
        ("this meter", used.meter_cores),
        ("others", used.stranger_cores),
    ]);
    parts.retain(|(_, busy)| *busy >= 0.005);
    parts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let shown: Vec<String> = parts.iter().map(|(name, busy)| format!("{name} {busy:.2}")).collect();
    let busy = used.busy_cores();
    let verdict = if busy >= FULL * cores as f64 {
        "the cores are the limit"
    } else {
        "the cores are not the limit: waits and single threads are"
    };
    format!("{busy:.2} of {cores} cores busy, so {verdict} ({})", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(api_server_seconds: f64) -> Used {
        Used {
            elapsed_seconds: 10.0,
            plane_seconds: vec![("etcd".to_owned(), 1.0), ("kube-apiserver".to_owned(), api_server_seconds)],
            controller_seconds: 0.0,
            meter_seconds: 1.0,
            meter_cores: 0.1,
            stranger_cores: 0.0,
        }
    }

    #[test]
    fn the_limit_is_named_with_who_uses_the_cores() {
        let full = limit(&used(17.0), 2);
        assert!(
            full.starts_with("1.90 of 2 cores busy, so the cores are the limit (kube-apiserver 1.70"),
            "{full}"
        );
        let idle = limit(&used(5.0), 2);
        assert!(idle.contains("are not the limit") && !idle.contains("controller"), "{idle}");
    }

    #[test]
    fn the_spread_of_the_writes_has_the_most_at_its_end() {
        let writes = BTreeMap::from([(3, 98), (4, 2)]);
        assert_eq!(spread(&writes), "3 of 98 objects, 4 of 2 objects");
        assert_eq!((most(&writes), most(&BTreeMap::new())), (4.0, 0.0));
    }
}
