//! `cargo xtask bench transfer`: pulling one large file and many small ones from an S3 server on this machine, beside a
//! null downloader and beside rclone.
//!
//! All three ask the same server for the same bytes, in turn and in the same run, sixteen requests at a time. The null
//! downloader is the same client as that of model-transfer and throws them away, so shares of it can be compared between
//! machines. model-transfer and rclone leave it to the system when the bytes go to disk, as an AIInference does with a
//! volume that ends with its pod; the speed with the wait for the disk stands beside. The objects lie in the server's folder without
//! an ETag: what is compared is moving bytes, not hashing.
//!
//! The large file is also pulled from a stand-in of a hub, with a redirect and its SHA-256, beside a null downloader that
//! writes the same ranges to a file: once without, and once with a SHA-256 of each range. Where the server and the client
//! have no processor to spare, the second is the one that does the same work.
//!
//! Measured is the program as cargo builds it for this machine. That of the image has musl's allocator: it holds less
//! memory, and takes longer for many small files.

use std::{
    cell::Cell,
    fs::{self, File},
    io::Write as _,
    num::NonZero,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use hub_server::{Content, HubServer, Model};
use s3_server::{Keys, Server};

use crate::{
    figures::{Figure, medians, table},
    machine,
    programs::{build, succeed, target_folder},
};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// MiB of the large file
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    large: u32,
    /// Small files
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    small: u32,
    /// Repeats; medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// Without rclone, whose first build takes minutes
    #[arg(long)]
    without_rclone: bool,
}

const MIB: usize = 1 << 20;
/// Like the configuration and tokenizer files of a model.
const SMALL_BYTES: usize = 64 << 10;
/// At once into the large file; larger ones are no faster.
const WRITE: usize = 256 << 10;
const BUCKET: &str = "models";
const LARGE: &str = "large";
const SMALL: &str = "small";
const HUB_MODEL: &str = "bench/model";
/// As many as a pull makes.
const CONNECTIONS: &str = "16";
const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(5);

/// What is measured against each other.
#[derive(Clone, Debug)]
struct Programs {
    null: PathBuf,
    model_transfer: PathBuf,
    rclone: Option<PathBuf>,
}

/// How one program did.
#[derive(Clone, Copy, Debug)]
struct Took {
    seconds: f64,
    cpu_seconds: f64,
    peak_mib: f64,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    build(&["--release", "--package", "model-transfer"])?;
    build(&["--release", "--package", "model-transfer", "--example", "discard"])?;
    let release = target_folder()?.join("release");
    let programs = Programs {
        null: release.join("examples/discard"),
        model_transfer: release.join("model-transfer"),
        rclone: match args.without_rclone {
            true => None,
            false => Some(local_cluster::tools::ensure_bench()?.join("rclone")),
        },
    };
    // Beside the builds: a memory file system would measure something else.
    let folder = target_folder()?.join("bench-transfer");
    let scene = Scene::start(&folder, args)?;
    let mut runs = Vec::new();
    for run in 1..=args.runs {
        let began = machine::condition()?;
        let mut figures = scene.compared(&programs, LARGE, args)?;
        figures.extend(scene.compared(&programs, SMALL, args)?);
        figures.extend(scene.of_hub(&programs, args)?);
        println!("{}", table(&format!("run {run} of {}", args.runs), &figures));
        println!("begin: {began}\nend:   {}\n", machine::condition()?);
        runs.push(figures);
    }
    if runs.len() > 1 {
        println!("{}", table(&format!("medians of {} runs", runs.len()), &medians(&runs)));
    }
    Ok(())
}

/// The server and its objects; both go with it.
struct Scene {
    folder: PathBuf,
    server: Server,
    hub: HubServer,
    /// How many folders were pulled into.
    targets: Cell<u32>,
}

impl Scene {
    fn start(folder: &Path, args: &Args) -> anyhow::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("failed to remove {}", folder.display()))?;
        }
        let objects = folder.join("server").join(BUCKET);
        write_objects(&objects, args).with_context(|| format!("failed to fill {}", objects.display()))?;
        let server = Server::start(&folder.join("server"), Keys::new("bench", "bench-secret"), Vec::new())?;
        let hub = HubServer::start()?;
        let large = Content::file(File::open(objects.join(LARGE).join("model.bin"))?)?;
        hub.put(Model::new(HUB_MODEL, [(LARGE.to_owned(), large)]));
        Ok(Self { folder: folder.to_owned(), server, hub, targets: Cell::new(0) })
    }

    /// The large file from the hub: the null downloader that writes, the one that hashes as well, and model-transfer.
    fn of_hub(&self, programs: &Programs, args: &Args) -> anyhow::Result<Vec<Figure>> {
        let null = self.null_of_hub(programs, args, None)?;
        let hashing = self.null_of_hub(programs, args, Some("hash"))?;
        let pulled = self.in_new_folder(LARGE, |target| {
            let mut pull = Command::new(&programs.model_transfer);
            pull.args(["pull", &format!("hf://{HUB_MODEL}"), "--no-sync"]).arg(target);
            pull.env("TRANSFER_HUB_ENDPOINT", self.hub.endpoint());
            self.took(pull)
        })?;
        let speed = |took: Took| f64::from(args.large) / took.seconds;
        let percent_of = |null: Took| 1e2 * null.seconds / pulled.seconds;
        Ok(vec![
            Figure::new(format!("one file of {} MiB from a hub: MiB/s", args.large), speed(pulled))
                .beside(speed(null)),
            Figure::new("  in % of a null downloader that writes", percent_of(null)).at_least(85.0),
            Figure::new("  CPU s", pulled.cpu_seconds).beside(null.cpu_seconds),
            Figure::new("  in % of one that writes and hashes", percent_of(hashing)).at_least(85.0),
            Figure::new("  CPU s, beside that one", pulled.cpu_seconds).beside(hashing.cpu_seconds),
            Figure::new("  peak resident memory, MiB", pulled.peak_mib).beside(null.peak_mib).at_most(32.0),
        ])
    }

    fn null_of_hub(&self, programs: &Programs, args: &Args, more: Option<&str>) -> anyhow::Result<Took> {
        let bytes = u64::from(args.large) * MIB as u64;
        let took = self.in_new_folder(LARGE, |target| {
            fs::create_dir_all(target)?;
            let address = format!("{}/{HUB_MODEL}/resolve/main/{LARGE}", self.hub.endpoint());
            let mut null = Command::new(&programs.null);
            null.arg(address).arg(bytes.to_string()).arg(target.join(LARGE)).args(more);
            self.took(null)
        })?;
        let counted = fs::read_to_string(self.log())?;
        ensure!(counted.trim() == bytes.to_string(), "the null downloader got {counted} bytes, not {bytes}");
        Ok(took)
    }

    /// Null downloader, model-transfer and rclone, one after the other.
    fn compared(&self, programs: &Programs, prefix: &str, args: &Args) -> anyhow::Result<Vec<Figure>> {
        let (title, amount, unit) = match prefix {
            LARGE => (format!("one file of {} MiB", args.large), f64::from(args.large), "MiB/s"),
            _ => (
                format!("{} files of {} KiB", args.small, SMALL_BYTES >> 10),
                f64::from(args.small),
                "files/s",
            ),
        };
        // As before the others: what was written before is on the disk.
        succeed(&mut Command::new("sync"))?;
        let mut null = Command::new(&programs.null);
        null.args([BUCKET, prefix]);
        let null = self.took(null)?;
        let bytes = match prefix {
            LARGE => u64::from(args.large) * MIB as u64,
            _ => u64::from(args.small) * SMALL_BYTES as u64,
        };
        let counted = fs::read_to_string(self.log())?;
        ensure!(counted.trim() == bytes.to_string(), "the null downloader got {counted} bytes, not {bytes}");

        let written = self.in_new_folder(prefix, |target| written(target, prefix, args))?;
        let pulled = |more: &[&str]| {
            self.in_new_folder(prefix, |target| {
                let mut pull = Command::new(&programs.model_transfer);
                pull.args(["pull", &format!("s3://{BUCKET}/{prefix}")]).arg(target).args(more);
                self.took(pull)
            })
        };
        let unsynced = pulled(&["--no-sync"])?;
        let synced = pulled(&[])?;

        let speed = |took: Took| amount / took.seconds;
        let mut figures = vec![
            Figure::new(format!("{title}: {unit}"), speed(unsynced)).beside(speed(null)),
            Figure::new("  in % of the null downloader's", 1e2 * null.seconds / unsynced.seconds)
                .at_least(80.0),
            Figure::new(
                "  in % of that and then writing the same",
                1e2 * (null.seconds + written) / unsynced.seconds,
            ),
            Figure::new("  CPU s", unsynced.cpu_seconds).beside(null.cpu_seconds),
            Figure::new("  peak resident memory, MiB", unsynced.peak_mib).beside(null.peak_mib).at_most(96.0),
            Figure::new(format!("  until it is on disk: {unit}"), speed(synced)),
        ];
        if let Some(program) = &programs.rclone {
            let rclone = self.in_new_folder(prefix, |target| self.took(rclone(program, prefix, target)))?;
            figures.extend([
                Figure::new(format!("  rclone: {unit}"), speed(rclone)),
                Figure::new("  in % of rclone's", 1e2 * rclone.seconds / unsynced.seconds).at_least(100.0),
                Figure::new("  rclone: CPU s", rclone.cpu_seconds),
                Figure::new("  rclone: peak resident memory, MiB", rclone.peak_mib),
            ]);
        }
        Ok(figures)
    }

    /// In a new folder, after what the program before has left to be written is on the disk. Many files stay until the end: for
    /// minutes after a file was removed, ext4 creates others near it at a tenth of its speed.
    fn in_new_folder<T>(
        &self,
        prefix: &str,
        work: impl FnOnce(&Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let target = self.folder.join(format!("target-{}", self.targets.replace(self.targets.get() + 1)));
        succeed(&mut Command::new("sync"))?;
        let worked = work(&target)?;
        if prefix == LARGE {
            fs::remove_dir_all(&target).with_context(|| format!("failed to remove {}", target.display()))?;
        }
        Ok(worked)
    }

    /// What the last program has printed.
    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn took(&self, mut command: Command) -> anyhow::Result<Took> {
        let name = command.get_program().to_string_lossy().into_owned();
        let endpoint = format!("http://{}", self.server.address());
        let log = self.log();
        let output = File::create(&log).with_context(|| format!("failed to create {}", log.display()))?;
        command
            .envs([
                ("AWS_ENDPOINT_URL", endpoint.as_str()),
                ("AWS_REGION", "us-east-1"),
                ("AWS_ACCESS_KEY_ID", "bench"),
                ("AWS_SECRET_ACCESS_KEY", "bench-secret"),
            ])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let began = Instant::now();
        let mut child = command.spawn().with_context(|| format!("failed to start {name}"))?;
        let (mut cpu_seconds, mut peak_mib) = (0.0, 0.0);
        let status = loop {
            // Gone between the question and the answer: what was read last counts.
            cpu_seconds = machine::cpu_seconds(child.id()).unwrap_or(cpu_seconds);
            peak_mib = machine::peak_resident_mib(child.id()).unwrap_or(peak_mib);
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if began.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                bail!("{name} was not done after {} s", PATIENCE.as_secs());
            }
            thread::sleep(POLL);
        };
        let seconds = began.elapsed().as_secs_f64();
        let said = fs::read_to_string(&log).unwrap_or_default();
        ensure!(status.success(), "{name} ended with {status}:\n{said}");
        Ok(Took { seconds, cpu_seconds, peak_mib })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.server.stop();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Seconds for as many bytes from memory into the page cache of new files, with all processors: added to what the
/// null downloader needs of them, the best that a program can do that does not write past the page cache.
fn written(target: &Path, prefix: &str, args: &Args) -> anyhow::Result<f64> {
    fs::create_dir_all(target).with_context(|| format!("failed to create {}", target.display()))?;
    let large = File::create(target.join("model.bin"))?;
    let (runs, length) = match prefix {
        LARGE => (u64::from(args.large) * (MIB / WRITE) as u64, WRITE),
        _ => (u64::from(args.small), SMALL_BYTES),
    };
    let bytes = vec![0xa5; length];
    let next = AtomicU64::new(0);
    let write = || -> std::io::Result<()> {
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            match prefix {
                _ if run >= runs => return Ok(()),
                LARGE => large.write_all_at(&bytes, run * length as u64)?,
                _ => fs::write(target.join(format!("{run}.bin")), &bytes)?,
            }
        }
    };
    let began = Instant::now();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..processors).map(|_| scope.spawn(write)).collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(written) => written.context("failed to write"),
            Err(_) => bail!("a writer died"),
        })
    })?;
    Ok(began.elapsed().as_secs_f64())
}

/// With as many requests at once as model-transfer; no configuration of the user is read.
fn rclone(program: &Path, prefix: &str, target: &Path) -> Command {
    let mut rclone = Command::new(program);
    rclone
        .args(["copy", &format!(":s3:{BUCKET}/{prefix}")])
        .arg(target)
        .args(["--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth"])
        .args(["--transfers", CONNECTIONS, "--checkers", CONNECTIONS, "--multi-thread-streams", CONNECTIONS]);
    rclone
}

/// Bytes without a pattern, so that neither compression nor holes in files make anything faster.
fn write_objects(bucket: &Path, args: &Args) -> std::io::Result<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = vec![0; MIB];
    let mut fill = |bytes: &mut [u8]| {
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
    };
    fs::create_dir_all(bucket.join(LARGE))?;
    fs::create_dir_all(bucket.join(SMALL))?;
    let mut large = File::create(bucket.join(LARGE).join("model.bin"))?;
    for _ in 0..args.large {
        fill(&mut noise);
        large.write_all(&noise)?;
    }
    for number in 0..args.small {
        let content = &mut noise[..SMALL_BYTES];
        fill(content);
        fs::write(bucket.join(SMALL).join(format!("{number}.bin")), content)?;
    }
    Ok(())
}
