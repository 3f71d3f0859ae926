//! `cargo xtask bench inference`: N AIInferences from their creation to Ready, and what they cost in CPU time, memory and
//! requests.
//!
//! Two arms, each on a fresh cluster of its own and in the same way: a *null writer*, which makes the very children that
//! the controller would make and knows nothing else, and the *inference-controller*. In both, the same AIInferences are
//! created and the same watches of this meter are open, and one more, of Deployments, for the null writer. It is a writer
//! without logic, so shares of it can be compared between machines. It writes as an administrator, whom no policy checks
//! and no audit names.

mod canaries;
mod controller_arm;
mod null_writer;
mod plane;

use std::path::{Path, PathBuf};

use tokio::runtime::Runtime;

use self::{
    controller_arm::{Controlled, Percentiles},
    null_writer::Nulled,
};
use crate::{
    figures::{Figure, exponent, medians, table},
    machine,
    plane::{Programs, children::NullWriter, requests::Whose},
    programs::build,
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// AIInferences that are created at once
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: u32,
    /// AIInferences a second in the paced part, which comes after the burst
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pace: u32,
    /// Repeats of both arms; medians are printed
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// How the null writer writes; POST is the cheapest, server-side apply is what the controller does
    #[arg(long, value_enum, default_value_t = NullWriter::Post)]
    null_writer: NullWriter,
    /// Program of the controller; `cargo xtask bench` builds the one that images hold
    #[arg(long, env = "BENCH_PROGRAM")]
    controller: PathBuf,
    /// Another program of it, measured in turn with the first
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Instead: bursts of 100, 300, 1000 and 3000 of the controller alone, and how its CPU time grows with them
    #[arg(long, conflicts_with_all = ["count", "pace", "runs", "null_writer", "beside"])]
    growth: bool,
    /// Instead: so many canaries of the controller alone, at rest and while the engines of their versions are asked
    #[arg(
        long,
        conflicts_with_all = ["count", "pace", "runs", "null_writer", "beside", "growth"],
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    canaries: Option<u32>,
}

/// The name of the controller, of its program and of its ServiceAccount.
const CONTROLLER: &str = "inference-controller";
const COUNTED: Whose = Whose {
    controller: CONTROLLER,
    children: &["configmaps", "deployments", "services", "poddisruptionbudgets"],
};
/// Like 32 users at once; more only queue in the API server.
const CONNECTIONS: usize = 32;
const GROWTH: [u32; 4] = [100, 300, 1000, 3000];

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    // It only looks after the others, which a debug build does as well.
    build(&["--package", "local-cluster"])?;
    local_cluster::install_crypto_provider();
    let programs = Programs::with(args.controller.clone(), "debug")?;
    tokio.block_on(async {
        match args.canaries {
            Some(count) => Box::pin(canaries::run(&programs, count)).await,
            None if args.growth => Box::pin(growth(&programs)).await,
            None => Box::pin(compared(args, &programs)).await,
        }
    })
}

async fn compared(args: &Args, programs: &Programs) -> anyhow::Result<()> {
    let controllers: Vec<&PathBuf> = args.beside.iter().chain([&args.controller]).collect();
    let mut runs = vec![Vec::new(); controllers.len()];
    for run in 1..=args.runs {
        println!("run {run} of {}: null writer; {}", args.runs, machine::condition()?);
        let nulled = Box::pin(null_writer::run(programs, args.count, args.null_writer)).await?;
        for (controller, runs) in controllers.iter().zip(&mut runs) {
            runs.push(Box::pin(measured(args, programs, controller, &nulled, run)).await?);
        }
    }
    for (controller, runs) in controllers.iter().zip(&runs).filter(|(_, runs)| runs.len() > 1) {
        println!("\n{}", controller.display());
        let (count, how) = (args.count, args.null_writer);
        let title = format!("{count} AIInferences, medians of {} runs, null writer by {how:?}", runs.len());
        println!("{}", table(&title, &medians(runs)));
    }
    Ok(())
}

async fn measured(
    args: &Args,
    programs: &Programs,
    controller: &Path,
    nulled: &Nulled,
    run: u32,
) -> anyhow::Result<Vec<Figure>> {
    let began = machine::condition()?;
    println!("run {run} of {}: {}", args.runs, controller.display());
    let programs = Programs { controller: controller.to_owned(), ..programs.clone() };
    let controlled = Box::pin(controller_arm::run(&programs, args.count, args.pace)).await?;
    println!(
        "\nrequests of the controller per object, of {} in the burst\n{}",
        args.count, controlled.requests
    );
    println!("begin: {began}\nend:   {}", machine::condition()?);
    if !controlled.at_rest.is_empty() {
        println!("requests at rest\n{}", controlled.at_rest);
    }
    let figures = figures(args, &controlled, nulled);
    let title = format!("{} AIInferences, run {run}, null writer by {:?}", args.count, args.null_writer);
    println!("\n{}", table(&title, &figures));
    Ok(figures)
}

fn figures(args: &Args, controlled: &Controlled, nulled: &Nulled) -> Vec<Figure> {
    let count = f64::from(args.count);
    let Controlled { burst, requests, .. } = controlled;
    let (used, null_used) = (&burst.used, &nulled.burst.used);
    let (per_second, null_per_second) = (count / burst.seconds, count / nulled.burst.seconds);
    let each = |requests: usize| requests as f64 / count;
    let ms_each = |seconds: f64| 1e3 * seconds / count;
    let (plane, null_plane) = (ms_each(used.whole_plane_seconds()), ms_each(null_used.whole_plane_seconds()));
    let mut figures = vec![
        Figure::new("created -> all Ready (null writer: Available), s", burst.seconds)
            .beside(nulled.burst.seconds),
        Figure::new("objects per second", per_second).beside(null_per_second),
        Figure::new("  in % of the null writer's", 1e2 * per_second / null_per_second).at_least(100.0),
        Figure::new("CPU of Kubernetes, etcd and KWOK per object, ms", plane).beside(null_plane),
        Figure::new("  times the null writer's", plane / null_plane).at_most(1.05),
    ];
    for ((name, seconds), (_, null_seconds)) in used.plane_seconds.iter().zip(&null_used.plane_seconds) {
        figures
            .push(Figure::new(format!("  of it {name}"), ms_each(*seconds)).beside(ms_each(*null_seconds)));
    }
    let Percentiles { p50: burst_p50, p99: burst_p99 } = controlled.burst_child_ms;
    let Percentiles { p50: paced_p50, p99: paced_p99 } = controlled.paced_child_ms;
    let Percentiles { p50: create_p50, p99: create_p99 } = controlled.paced_create_ms;
    let writes = each(requests.children + requests.status);
    figures.extend([
        // Beside it, what this meter needs for the four requests and three watches of the null writer.
        Figure::new("CPU of the controller per 1000 objects, s", ms_each(used.controller_seconds))
            .beside(ms_each(null_used.meter_seconds))
            .at_most(3.0),
        Figure::new("resident memory of the controller at its peak, MiB", controlled.peak_mib),
        Figure::new("resident memory of the controller 10 s after, MiB", controlled.idle_mib).at_most(28.0),
        Figure::new("reconciles per object", controlled.reconciles / count).at_most(2.5),
        Figure::new("writes of children per object", each(requests.children)),
        Figure::new("writes of children and status per object", writes)
            .beside(nulled.children as f64)
            // The null writer writes no budget.
            .at_most(nulled.children as f64 + 1.0 + STATUS_WRITES),
        Figure::new("events per object", each(requests.events)).at_most(1.0),
        // The annotations of a pod that has been the only ready one for 30 s.
        Figure::new("other writes per object", each(requests.other_writes)).at_most(1.0),
        Figure::new("GET and LIST per object", each(requests.reads)).at_most(0.0),
        Figure::new("burst: create acknowledged -> first child, p50, ms", burst_p50),
        Figure::new("burst: create acknowledged -> first child, p99, ms", burst_p99),
        Figure::new("paced: create acknowledged -> first child, p50, ms", paced_p50).at_most(5.0),
        Figure::new("paced: create acknowledged -> first child, slowest, ms", paced_p99).at_most(25.0),
        Figure::new("paced: the create itself, p50, ms", create_p50),
        Figure::new("paced: the create itself, slowest, ms", create_p99),
        Figure::new("requests in 20 s at rest, without Lease and watches", controlled.at_rest.total() as f64)
            .at_most(0.0),
        Figure::new("cores used by other processes during the burst", used.stranger_cores)
            .beside(null_used.stranger_cores),
        Figure::new("cores used by this meter during the burst", used.meter_cores)
            .beside(null_used.meter_cores),
    ]);
    figures
}

/// That it loads, for most, and that it is ready.
const STATUS_WRITES: f64 = 1.5;

async fn growth(programs: &Programs) -> anyhow::Result<()> {
    let mut cpu = Vec::new();
    println!(
        "{:>8} {:>16} {:>22} {:>12} {:>12} {:>12}",
        "OBJECTS", "CONTROLLER CPU s", "RECONCILES PER OBJECT", "PEAK MiB", "READY s", "OTHER CORES"
    );
    for count in GROWTH {
        let grown = Box::pin(controller_arm::burst(programs, count)).await?;
        let (used, reconciles) = (grown.burst.used.controller_seconds, grown.reconciles / f64::from(count));
        let (peak, ready, strangers) = (grown.peak_mib, grown.burst.seconds, grown.burst.used.stranger_cores);
        println!("{count:>8} {used:>16.2} {reconciles:>22.1} {peak:>12.1} {ready:>12.1} {strangers:>12.2}");
        cpu.push((f64::from(count), used));
    }
    let figure =
        Figure::new("exponent of the controller's CPU time over the count", exponent(&cpu)).at_most(1.05);
    println!("\n{}\nend: {}", table("growth", &[figure]), machine::condition()?);
    Ok(())
}
