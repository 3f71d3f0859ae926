//! Builds programs for one platform, and examines each before it becomes an image: that it is static, or needs nothing but
//! glibc, that it starts where this machine can run it, and that it names no path of this machine.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use api::controllers::{Libc, Program, released};
use serde::Deserialize;

use super::{
    build::Build,
    glibc::{self, Library, contains},
    platform::Platform,
};
use crate::steps::{cargo, printed, succeed, sysroot, target_folder, workspace};

/// A program that passed every check.
#[derive(Debug)]
pub(super) struct Built {
    /// Where cargo has put it.
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
    /// What it loads when it starts.
    pub(super) libraries: Vec<Library>,
}

/// Builds packages and reads their programs, in this order.
pub(super) fn build(build: Build, platform: Platform, wanted: &[Program]) -> anyhow::Result<Vec<Built>> {
    let mut built = BTreeMap::new();
    for libc in [Libc::Musl, Libc::Glibc] {
        let linked: Vec<Program> = wanted.iter().filter(|program| program.libc == libc).copied().collect();
        if !linked.is_empty() {
            let programs = build_linked(build, platform, libc, &linked)?;
            built.extend(linked.iter().map(|program| program.name).zip(programs));
        }
    }
    wanted.iter().map(|program| built.remove(program.name).context("a program is wanted twice")).collect()
}

fn build_linked(
    build: Build,
    platform: Platform,
    libc: Libc,
    wanted: &[Program],
) -> anyhow::Result<Vec<Built>> {
    ensure_target_of(platform, libc)?;
    let target = platform.target(libc);
    let remapped = Remapped::of_this_machine()?;
    let tools = Tools::of(platform, libc)?;
    let mut command = cargo(["build", "--locked", "--message-format=json-render-diagnostics", "--target"]);
    command.args([&target, "--profile", build.cargo_profile()]);
    // A dependency has the features that all selected packages want. With all of them selected, the same programs come
    // from a build of one as from a build of all, and later builds find the dependencies.
    for program in released().iter().filter(|program| program.libc == libc) {
        command.args(["--package", program.name]);
    }
    for program in wanted {
        command.args(["--package", program.name, "--bin", program.name]);
    }
    let variable = |name: &str| format!("{name}_{}", target.replace('-', "_"));
    command.env(variable("CC"), &tools.compiler);
    if let Some(archiver) = &tools.archiver {
        command.env(variable("AR"), archiver);
    }
    if let Some(linker) = &tools.linker {
        let name = format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase());
        command.env(name, linker);
    }
    // C code that names the time when it was built. The same for all: what is built already stays at a new commit.
    command.env("SOURCE_DATE_EPOCH", "0");
    // Flags that the user has set would change the program.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let (mut rust_flags, mut c_flags) = (tools.rust_flags.to_vec(), vec![NO_HUGE_PAGES]);
    c_flags.extend(tools.c_flags);
    let (remapped_rust, remapped_c) = (remapped.rust_flags(), remapped.c_flags());
    if build == Build::Release {
        // With the path of this checkout in the flags, every other checkout builds all dependencies anew.
        rust_flags.extend(remapped_rust.iter().map(String::as_str));
        c_flags.extend(remapped_c.iter().map(String::as_str));
    }
    command.env(variable("CFLAGS"), c_flags.join(" "));
    if !rust_flags.is_empty() {
        // As cargo wants them: separated by a character that no path has.
        command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags.join("\u{1f}"));
    }
    let output = command.stderr(Stdio::inherit()).output().context("failed to start cargo")?;
    ensure!(output.status.success(), "cargo failed to build the programs: {}", output.status);
    let executables = executables(&output.stdout);
    let mut built = Vec::new();
    for program in wanted {
        let name = program.name;
        let path = executables.get(name).with_context(|| format!("cargo built no program {name}"))?;
        let bytes = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        examine(path, &bytes, build, platform, libc, &remapped)
            .with_context(|| format!("{name} is not fit for an image"))?;
        let libraries = match libc {
            Libc::Musl => Vec::new(),
            Libc::Glibc => glibc::libraries(path, platform)?,
        };
        built.push(Built { path: path.clone(), bytes, libraries });
    }
    Ok(built)
}

/// Installs the standard library that static programs of this machine are linked with, where that has not been done.
pub(crate) fn ensure_target() -> anyhow::Result<()> {
    ensure_target_of(Platform::of_this_machine()?, Libc::Musl)
}

fn ensure_target_of(platform: Platform, libc: Libc) -> anyhow::Result<()> {
    let target = platform.target(libc);
    let library = printed(Command::new("rustc").current_dir(workspace()).args([
        "--print",
        "target-libdir",
        "--target",
        &target,
    ]))?;
    if Path::new(&library).is_dir() {
        return Ok(());
    }
    succeed(Command::new("rustup").current_dir(workspace()).args(["target", "add", &target]))
        .with_context(|| format!("Rust's standard library for {target} is missing: install it"))
}

/// mimalloc turns huge pages off for its process, also on nodes that give them to every process
/// (`transparent_hugepage=always`). The feature `no_thp` of its crate alone only stops it from asking for them.
const NO_HUGE_PAGES: &str = "-DMI_DEFAULT_ALLOW_THP=0";

/// What C code is compiled with, and how programs are linked.
struct Tools {
    compiler: String,
    archiver: Option<String>,
    /// Instead of Rust's default.
    linker: Option<String>,
    c_flags: &'static [&'static str],
    rust_flags: &'static [&'static str],
}

impl Tools {
    fn of(platform: Platform, libc: Libc) -> anyhow::Result<Self> {
        let is_own = platform == Platform::of_this_machine()?;
        if is_own && libc == Libc::Glibc {
            return Ok(Self {
                compiler: "cc".to_owned(),
                archiver: None,
                linker: None,
                c_flags: &[],
                rust_flags: &[],
            });
        }
        if is_own {
            // Only the compiler of C code: with musl-gcc as the linker, programs crash when they start.
            let compiler = "musl-gcc".to_owned();
            ensure!(answers(&compiler), "images need musl-gcc: install the Debian package musl-tools");
            return Ok(Self { compiler, archiver: None, linker: None, c_flags: &[], rust_flags: &[] });
        }
        let processor = platform.processor();
        let compiler = format!("{processor}-linux-gnu-gcc");
        ensure!(
            answers(&compiler),
            "images for {} need {compiler}: install the Debian packages gcc-{package}-linux-gnu and \
             libc6-dev-{}-cross, or build on such a machine",
            platform.architecture(),
            platform.architecture(),
            package = processor.replace('_', "-"),
        );
        let archiver = Some(format!("{processor}-linux-gnu-ar"));
        if libc == Libc::Glibc {
            let linker = Some(compiler.clone());
            return Ok(Self { compiler, archiver, linker, c_flags: &[], rust_flags: &[] });
        }
        Ok(Self {
            compiler,
            archiver,
            linker: None,
            // Its headers are those of glibc: without checked variants of functions, which musl does not have.
            c_flags: match platform {
                Platform::Amd64 => &["-U_FORTIFY_SOURCE"],
                // libgcc has the functions for atomics of older processors, and is not linked.
                Platform::Arm64 => &["-U_FORTIFY_SOURCE", "-mno-outline-atomics"],
            },
            // The linker that comes with Rust, and musl as Rust brings it.
            rust_flags: &["-Clinker=rust-lld", "-Clink-self-contained=yes"],
        })
    }
}

/// Folders of this machine, and what stands for them in programs. Where several match, the last one counts.
struct Remapped(Vec<(PathBuf, &'static str)>);

impl Remapped {
    fn of_this_machine() -> anyhow::Result<Self> {
        let home = env::home_dir().context("this user has no home folder")?;
        let cargo_home = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
        Ok(Self(vec![
            (workspace().to_owned(), "/source"),
            (target_folder()?, "/target"),
            (cargo_home, "/cargo"),
            (sysroot()?, "/rust"),
        ]))
    }

    fn rust_flags(&self) -> Vec<String> {
        self.0.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect()
    }

    fn c_flags(&self) -> Vec<String> {
        self.0.iter().map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display())).collect()
    }
}

/// A message of cargo about a program that it built or found up to date.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    target: Target,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Programs by name, from cargo's messages. Messages about other things lack these fields.
fn executables(messages: &[u8]) -> BTreeMap<String, PathBuf> {
    let lines = messages.split(|byte| *byte == b'\n');
    let artifacts = lines.filter_map(|line| serde_json::from_slice::<Artifact>(line).ok());
    artifacts.filter_map(|artifact| Some((artifact.target.name, artifact.executable?))).collect()
}

fn examine(
    path: &Path,
    bytes: &[u8],
    build: Build,
    platform: Platform,
    libc: Libc,
    remapped: &Remapped,
) -> anyhow::Result<()> {
    let is_static = is_static(bytes).context("it is no program of Linux")?;
    match libc {
        Libc::Musl => ensure!(is_static, "it asks for a dynamic loader"),
        Libc::Glibc => ensure!(!is_static, "it is static, and could not load a library"),
    }
    ensure!(machine(bytes) == Some(platform), "it is not for {}", platform.architecture());
    let help = Command::new(path).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match help {
        Ok(help) => ensure!(help.success(), "`{} --help` ended with {help}", path.display()),
        // Another processor, and no emulator is registered.
        Err(error)
            if platform != Platform::of_this_machine()? && error.raw_os_error() == Some(EXEC_FORMAT) => {}
        Err(error) => return Err(error).with_context(|| format!("failed to start {}", path.display())),
    }
    if build == Build::Release {
        for (folder, _) in &remapped.0 {
            let folder = folder.to_string_lossy();
            ensure!(!contains(bytes, folder.as_bytes()), "it names a folder of this machine: {folder}");
        }
    }
    Ok(())
}

/// ENOEXEC of Linux: the kernel cannot run a program of this format.
const EXEC_FORMAT: i32 = 8;

/// The processor that an ELF program is for.
fn machine(bytes: &[u8]) -> Option<Platform> {
    match u16::from_le_bytes(*bytes.get(18..)?.first_chunk()?) {
        62 => Some(Platform::Amd64),
        183 => Some(Platform::Arm64),
        _ => None,
    }
}

/// Whether an ELF program of 64 bits has no PT_INTERP among its program headers; `None` if it is no such program.
fn is_static(bytes: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    let is_little_endian_64_bit = bytes.get(..6)? == b"\x7fELF\x02\x01";
    let table = usize::try_from(u64::from_le_bytes(*bytes.get(32..)?.first_chunk()?)).ok()?;
    let size = u16::from_le_bytes(*bytes.get(54..)?.first_chunk()?).into();
    let count = u16::from_le_bytes(*bytes.get(56..)?.first_chunk()?).into();
    if !is_little_endian_64_bit || size < 4 {
        return None;
    }
    let headers: Vec<&[u8]> = bytes.get(table..)?.chunks_exact(size).take(count).collect();
    let mut types = headers.iter().filter_map(|header| header.first_chunk());
    (headers.len() == count).then(|| types.all(|kind| u32::from_le_bytes(*kind) != PT_INTERP))
}

/// Whether a compiler is installed.
fn answers(compiler: &str) -> bool {
    let version =
        Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of an ELF program with one program header of this type.
    fn elf(kind: u8) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56], bytes[64]) = (64, 56, 1, kind);
        bytes
    }

    #[test]
    fn a_program_that_names_a_loader_is_not_static() {
        assert_eq!((is_static(&elf(1)), is_static(&elf(3))), (Some(true), Some(false)));
    }

    #[test]
    fn what_is_cut_off_or_no_program_is_not_taken_for_one() {
        for bytes in [&elf(1)[..100], &elf(1)[..40], b"#!/bin/true", b""] {
            assert_eq!(is_static(bytes), None);
        }
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[test]
    fn this_test_itself_is_linked_dynamically_and_for_this_machine() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        assert_eq!(machine(&own), Some(Platform::of_this_machine().unwrap()));
        assert_eq!(is_static(&own), Some(false));
        assert!(contains(&own, workspace().to_string_lossy().as_bytes()), "and names where it was built");
    }

    #[test]
    fn text_is_found_also_after_a_false_start() {
        assert!(contains(b"aab", b"ab") && contains(b"ab", b"ab"));
        assert!(!contains(b"aa", b"ab") && !contains(b"", b"a"));
    }

    #[test]
    fn programs_are_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"serde"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"pause"},"executable":"/target/pause"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n"
        );
        let found = executables(messages.as_bytes());
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("pause".to_owned(), "/target/pause".into())]);
    }
}
