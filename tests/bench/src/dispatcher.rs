//! `cargo xtask bench dispatcher`: N AIDispatchers from their creation to Ready, changes of their replicas, jumps of their
//! queues, and rest with a stream to each worker; and what all that costs.
//!
//! As in `inference`, there are two arms on a cluster each: a *null writer*, which makes the very Deployments that the
//! controller would make and knows nothing else, and the *dispatcher-controller*. Both are on simulated nodes, on which
//! pods are ready one write after they are placed. This meter answers for the monitors of the workers.

mod arms;
mod plane;

use std::path::PathBuf;

use tokio::runtime::Runtime;

use self::arms::Controlled;
use crate::{
    figures::{Figure, percentile, table},
    machine,
    plane::{Burst, Programs, children::NullWriter, requests::Whose},
    programs::build,
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// AIDispatchers that are created at once, with one worker each
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=2_000))]
    count: u32,
    /// Changes of replicas, and jumps of queues, one after the other
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=500))]
    steps: u32,
    /// How the null writer writes; POST is the cheapest, server-side apply is what the controller does
    #[arg(long, value_enum, default_value_t = NullWriter::Post)]
    null_writer: NullWriter,
    /// Program of the controller; `cargo xtask bench` builds the one that images hold
    #[arg(long, env = "BENCH_PROGRAM")]
    controller: PathBuf,
}

/// The name of the controller, of its program and of its ServiceAccount.
const CONTROLLER: &str = "dispatcher-controller";
const COUNTED: Whose = Whose { controller: CONTROLLER, children: &["deployments"] };
/// Like 32 users at once; more only queue in the API server.
const CONNECTIONS: usize = 32;

pub(super) fn run(args: &Args, tokio: &Runtime) -> anyhow::Result<()> {
    // It only looks after the others, which a debug build does as well.
    build(&["--package", "local-cluster"])?;
    local_cluster::install_crypto_provider();
    let programs = Programs::with(args.controller.clone(), "debug")?;
    tokio.block_on(async {
        println!("null writer; {}", machine::condition()?);
        let nulled = arms::null(&programs, args.count, args.null_writer).await?;
        println!("{}; {}", args.controller.display(), machine::condition()?);
        let controlled = arms::controlled(&programs, args.count, args.steps).await?;
        println!(
            "\nrequests of the controller per object, of {} in the burst\n{}",
            args.count, controlled.requests
        );
        if !controlled.at_rest.requests.is_empty() {
            println!("requests at rest\n{}", controlled.at_rest.requests);
        }
        println!("end: {}", machine::condition()?);
        let title = format!("{} AIDispatchers, null writer by {:?}", args.count, args.null_writer);
        println!("\n{}", table(&title, &figures(args, &controlled, &nulled)));
        Ok(())
    })
}

fn figures(args: &Args, controlled: &Controlled, nulled: &Burst) -> Vec<Figure> {
    let count = f64::from(args.count);
    let (per_second, null_per_second) = (count / controlled.burst.seconds, count / nulled.seconds);
    let each = |requests: usize| requests as f64 / count;
    let (used, null_used) = (&controlled.burst.used, &nulled.used);
    let ms_each = |seconds: f64| 1e3 * seconds / count;
    let of = |values: &[f64], share: f64| percentile(values.to_vec(), share).unwrap_or(f64::NAN);
    let requests = &controlled.requests;
    vec![
        Figure::new("created -> all Ready (null writer: ready replicas), s", controlled.burst.seconds)
            .beside(nulled.seconds),
        Figure::new("objects per second", per_second).beside(null_per_second),
        Figure::new("  in % of the null writer's", 1e2 * per_second / null_per_second).at_least(90.0),
        Figure::new("CPU of Kubernetes, etcd and KWOK per object, ms", ms_each(used.whole_plane_seconds()))
            .beside(ms_each(null_used.whole_plane_seconds())),
        Figure::new("CPU of the controller per 1000 objects, s", ms_each(used.controller_seconds))
            .beside(ms_each(null_used.meter_seconds))
            .at_most(2.5),
        Figure::new("resident memory of the controller at its peak, MiB", controlled.peak_mib),
        Figure::new("  at rest, with a stream to each worker, MiB", controlled.at_rest.mib),
        Figure::new("reconciles per object", controlled.reconciles / count),
        Figure::new("writes of children per object", each(requests.children)),
        Figure::new("writes of status per object", each(requests.status)),
        Figure::new("events per object", each(requests.events)).at_most(1.0),
        Figure::new("GET and LIST per object", each(requests.reads)).at_most(0.0),
        Figure::new(
            "requests in 20 s at rest, without Lease and watches",
            controlled.at_rest.requests.total() as f64,
        )
        .at_most(0.0),
        Figure::new(
            "CPU of the controller at rest, with a stream to each worker, % of a core",
            controlled.at_rest.percent,
        ),
        Figure::new("replicas changed -> pod created, p50, ms", of(&controlled.replicas_ms, 0.5)),
        Figure::new("replicas changed -> pod created, p99, ms", of(&controlled.replicas_ms, 0.99))
            .at_most(250.0),
        Figure::new("queue reported by a monitor -> pod created, p50, ms", of(&controlled.queue_ms, 0.5)),
        Figure::new("queue reported by a monitor -> pod created, p99, ms", of(&controlled.queue_ms, 0.99))
            .at_most(500.0),
        Figure::new("cores used by other processes during the burst", used.stranger_cores)
            .beside(null_used.stranger_cores),
    ]
}
