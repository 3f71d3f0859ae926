//! `cargo xtask train-demo`: the real ms-swift trains a tiny model on the CPU of a real node, is interrupted twice, resumes and
//! uploads its result. Controller, launcher and uploader are the images that users run.
//!
//! It prints what the API shows, and fails if an end does not come in time. It has a cluster of its own, which ends with the
//! command; only the Python environment is kept (`python.rs`).
#![expect(clippy::print_stdout, reason = "what this command prints is what it is for")]

mod image;
mod interruption;
mod objects;
mod story;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use api::trainingjob::{Phase, TrainingJobStatus};
use kube::Client;
use local_cluster::{Cluster, ClusterSpec, HUB_ADDRESS, NodePool, RealNodes, Service, api_server::install};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::{
    images,
    python::Environment,
    steps::{build_programs, succeed, workspace},
    swift_environment,
};
use objects::{ACCESS_KEY, BUCKET, JOB, NAMESPACE, SECRET_KEY, STORE_PORT};
use story::Story;

/// Of the cluster. A development cluster may run beside it.
const NAME: &str = "train-demo";
const CONTROLLER: &str = "training-controller";
/// ms-swift imports for 15 s on an idle machine, and for minutes on a busy one.
const STARTS_WITHIN: Duration = Duration::from_secs(300);
/// Two minutes on an idle machine.
const ENDS_WITHIN: Duration = Duration::from_secs(900);
/// A checkpoint of this model takes milliseconds, and the next attempt waits for the end of the pod.
const RESUMES_WITHIN: Duration = Duration::from_secs(360);
/// Then a checkpoint is there, and there are steps after it.
const KILLED_AFTER_STEP: i64 = 70;
/// On a fast machine the second attempt begins after it.
const PREEMPTED_AFTER_STEP: i64 = 160;
/// Lines of the trainer's log that an error shows.
const SHOWN_OF_LOG: &str = "--tail=30";

pub(crate) fn run() -> anyhow::Result<()> {
    let began = Instant::now();
    local_cluster::install_crypto_provider();
    // Before minutes are spent on downloads and builds.
    local_cluster::real::check()?;
    let environment = swift_environment::ensure()?;
    let environment_after = began.elapsed();
    build_programs()?;
    let images = images::build_dev()?;
    let spec = spec(&images)?;
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?;
    tokio.block_on(async {
        tokio::select! {
            played = play(spec, &images, &environment) => played,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.context("failed to wait for Ctrl-C")?;
                Err(anyhow::anyhow!("interrupted: the cluster ends with this command"))
            }
        }
    })?;
    println!(
        "\n{:.0} s in all, {:.0} s of them for the Python environment",
        began.elapsed().as_secs_f64(),
        environment_after.as_secs_f64()
    );
    Ok(())
}

/// One real node, beside simulated ones, so that Kubernetes does not treat one lost node as a lost cluster.
fn spec(images: &images::Folder) -> anyhow::Result<ClusterSpec> {
    let real = RealNodes {
        count: 1,
        gpus: 0,
        product: "none".to_owned(),
        tools: local_cluster::tools::ensure_nodes()?,
        pause: images.path.join("pause"),
    };
    let simulated = ClusterSpec::simulated(NAME, local_cluster::tools::ensure()?, NodePool::default());
    Ok(simulated.with_real_nodes(real))
}

async fn play(spec: ClusterSpec, images: &images::Folder, environment: &Environment) -> anyhow::Result<()> {
    let began = Instant::now();
    let cluster = Cluster::start(spec, &local_cluster::sibling_binary("local-cluster")?).await?;
    let store = prepare(&cluster, images, environment).await?;
    println!("cluster with one real node, the controller and an S3 server: {:.0} s\n", secs(began));
    let client = cluster.client().await?;
    let result = play_story(&cluster, &client, environment, &store).await;
    if result.is_err() {
        // Best effort: the error itself is what counts.
        let _ = kubectl(&cluster, &["describe", "trainingjob", JOB]);
        let _ = kubectl(&cluster, &["logs", "--selector", &objects::selector(), SHOWN_OF_LOG]);
    }
    let stopped = cluster.stop().await;
    result?;
    Ok(stopped?)
}

/// Everything but the job. Returns the folder of the S3 server, whose files are the objects.
async fn prepare(
    cluster: &Cluster,
    images: &images::Folder,
    environment: &Environment,
) -> anyhow::Result<PathBuf> {
    let deploy = workspace().join("deploy");
    cluster.install_shared(&deploy).await?;
    for image in &images.images {
        cluster.load_image(&images.path.join(&image.layout), &image.reference)?;
    }
    let layout = tempfile::tempdir().context("failed to create a folder for an image")?;
    image::write(environment, layout.path())?;
    cluster.load_image(layout.path(), image::REFERENCE)?;
    cluster.deploy(&deploy.join(CONTROLLER).join("overlays/dev")).await?;
    let store = cluster.folder().root().join("store");
    let bucket = store.join(BUCKET);
    fs::create_dir_all(&bucket).with_context(|| format!("failed to create {}", bucket.display()))?;
    let service = Service {
        name: "store".to_owned(),
        program: local_cluster::tools::ensure_services()?.join("versitygw"),
        args: ["--port", &format!("{HUB_ADDRESS}:{STORE_PORT}"), "posix", &store.to_string_lossy()]
            .map(str::to_owned)
            .into(),
        env: [("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    };
    cluster.start_service(service).await?;
    Ok(store)
}

/// Trains, interrupts, and shows what follows.
async fn play_story(
    cluster: &Cluster,
    client: &Client,
    environment: &Environment,
    store: &Path,
) -> anyhow::Result<()> {
    for object in objects::surroundings(environment) {
        apply(client, &object).await?;
    }
    let mut story = Story::begin(client, NAMESPACE, JOB);
    apply(client, &objects::job()).await?;
    story.line(&format!("TrainingJob {NAMESPACE}/{JOB} created"));

    story.until("a first step", STARTS_WITHIN, |status| status.progress.is_some()).await?;
    let killed = story.until("a checkpoint", ENDS_WITHIN, has_something_to_lose).await?;
    interruption::kill(client).await?;
    story.line(">>> the container is killed (SIGKILL)");
    let resumed = resumption(cluster, &mut story, 2).await?;
    if let Some(comparison) = story::comparison(&killed.loss_curve, &resumed) {
        story.line(&comparison);
    }

    let is_far = |status: &TrainingJobStatus| step(status) >= PREEMPTED_AFTER_STEP;
    story.until("further steps", ENDS_WITHIN, is_far).await?;
    interruption::delete_pod(client).await?;
    story.line(">>> the pod is deleted, as by a preemption: the trainer may save first");
    resumption(cluster, &mut story, 3).await?;
    let is_done = |status: &TrainingJobStatus| status.phase == Some(Phase::Succeeded);
    let ended = story.until("Succeeded", ENDS_WITHIN, is_done).await?;
    println!();
    kubectl(cluster, &["get", "trainingjobs"])?;
    show_result(&ended, store)
}

/// There is a checkpoint, and there are steps after it.
fn has_something_to_lose(status: &TrainingJobStatus) -> bool {
    let saved = status.checkpoint.as_ref().map_or(i64::MAX, |checkpoint| checkpoint.step);
    step(status) >= KILLED_AFTER_STEP && step(status) > saved
}

fn step(status: &TrainingJobStatus) -> i64 {
    status.progress.as_ref().map_or(0, |progress| progress.step)
}

/// Waits for the first step of an attempt, and shows what its launcher and trainer say of it.
async fn resumption(cluster: &Cluster, story: &mut Story, attempt: i32) -> anyhow::Result<TrainingJobStatus> {
    let what = format!("attempt {attempt}");
    story.until(&what, RESUMES_WITHIN, |status| status.attempts == attempt).await?;
    let has_step = |status: &TrainingJobStatus| {
        status.progress.as_ref().is_some_and(|progress| progress.attempt == attempt)
    };
    let resumed = story.until(&format!("a step of {what}"), STARTS_WITHIN, has_step).await?;
    let output = command(cluster, &["logs", &format!("job/{JOB}-{attempt}")]).output();
    let log = output.context("failed to start kubectl")?.stdout;
    for line in story::resumption(&String::from_utf8_lossy(&log)) {
        println!("           its log: {line}");
    }
    Ok(resumed)
}

/// Each artifact of the status, which must be in the store as the status says.
fn show_result(status: &TrainingJobStatus, store: &Path) -> anyhow::Result<()> {
    println!("\nlosses: {}", story::losses(&status.loss_curve));
    println!("files of the S3 server, with the SHA-256 that the status lists:");
    ensure!(!status.artifacts.is_empty(), "the status of TrainingJob {JOB} lists no artifact");
    for artifact in &status.artifacts {
        let key = artifact.uri.strip_prefix("s3://").context("the URI of an artifact is not of S3")?;
        let stored =
            fs::read(store.join(key)).with_context(|| format!("{} is not in the store", artifact.uri))?;
        let sha256: String = Sha256::digest(&stored).iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(sha256 == artifact.sha256, "{} has another SHA-256 in the store: {sha256}", artifact.uri);
        println!("  {:>8} bytes  {}", stored.len(), artifact.uri);
    }
    Ok(())
}

async fn apply(client: &Client, object: &Value) -> anyhow::Result<()> {
    // JSON is YAML.
    let applied = timeout(STARTS_WITHIN, install::apply(client, NAMESPACE, &object.to_string())).await;
    applied.with_context(|| format!("{} was not accepted in time", object["kind"]))??;
    Ok(())
}

fn command(cluster: &Cluster, args: &[&str]) -> Command {
    let mut command = Command::new(cluster.kubectl());
    command.arg("--kubeconfig").arg(cluster.folder().kubeconfig());
    command.args(["--namespace", NAMESPACE, "--request-timeout=30s"]).args(args);
    command
}

fn kubectl(cluster: &Cluster, args: &[&str]) -> anyhow::Result<()> {
    println!("$ kubectl {}", args.join(" "));
    succeed(&mut command(cluster, args))
}

fn secs(began: Instant) -> f64 {
    began.elapsed().as_secs_f64()
}
