//! Builds static programs for this machine's architecture, and examines each before it becomes an image: that it needs
//! nothing of the image, that it starts, and that it names no path of this machine.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail, ensure};
use api::controllers::Program;
use serde::Deserialize;

use super::build::Build;
use crate::steps::{cargo, succeed, target_folder, workspace};

/// A program that was found fit for an image.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) program: Program,
    pub(super) bytes: Vec<u8>,
}

/// Builds packages and reads their programs, in this order.
pub(super) fn build(build: Build, wanted: &[Program]) -> anyhow::Result<Vec<Built>> {
    ensure_target()?;
    let target = target()?;
    let remapped = Remapped::of_this_machine()?;
    let mut command = cargo(["build", "--locked", "--message-format=json-render-diagnostics", "--target"]);
    command.args([&target, "--profile", build.cargo_profile()]);
    for program in wanted {
        command.args(["--package", program.name]);
    }
    // Only the compiler of C code: with musl-gcc as the linker, programs crash when they start.
    command.env(format!("CC_{}", target.replace('-', "_")), "musl-gcc");
    // C code that names the time when it was built. The same for all: what is built already stays at a new commit.
    command.env("SOURCE_DATE_EPOCH", "0");
    // Whatever flags the user has set: they would be in the program.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    if build == Build::Release {
        // With the path of this checkout in the flags, every other checkout builds all dependencies anew.
        command.env(format!("CFLAGS_{}", target.replace('-', "_")), remapped.c_flags());
        command.env("CARGO_ENCODED_RUSTFLAGS", remapped.rust_flags());
    }
    let output = command.stderr(Stdio::inherit()).output().context("failed to start cargo")?;
    ensure!(output.status.success(), "cargo failed to build the programs: {}", output.status);
    let executables = executables(&output.stdout);
    let mut built = Vec::new();
    for program in wanted {
        let name = program.name;
        let path = executables.get(name).with_context(|| format!("cargo built no program {name}"))?;
        let bytes = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        examine(path, &bytes, build, &remapped).with_context(|| format!("{name} is not fit for an image"))?;
        built.push(Built { program: *program, bytes });
    }
    Ok(built)
}

/// Installs the standard library that static programs are linked with, where that has not been done.
pub(crate) fn ensure_target() -> anyhow::Result<()> {
    let target = target()?;
    let library = printed(Command::new("rustc").args(["--print", "target-libdir", "--target", &target]))?;
    if Path::new(&library).is_dir() {
        return Ok(());
    }
    succeed(Command::new("rustup").current_dir(workspace()).args(["target", "add", &target]))
        .with_context(|| format!("Rust's standard library for {target} is missing: install it"))
}

/// Linux, whatever this machine runs.
fn target() -> anyhow::Result<String> {
    match env::consts::ARCH {
        architecture @ ("x86_64" | "aarch64") => Ok(format!("{architecture}-unknown-linux-musl")),
        other => bail!("images are built on x86_64 and aarch64, and this is {other}"),
    }
}

/// Folders of this machine, and what stands for them in programs. Where several match, the last one counts.
struct Remapped(Vec<(PathBuf, &'static str)>);

impl Remapped {
    fn of_this_machine() -> anyhow::Result<Self> {
        let home = env::home_dir().context("this user has no home folder")?;
        let cargo_home = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
        let sysroot = printed(Command::new("rustc").current_dir(workspace()).args(["--print", "sysroot"]))?;
        Ok(Self(vec![
            (workspace().to_owned(), "/source"),
            (target_folder()?, "/target"),
            (cargo_home, "/cargo"),
            (sysroot.into(), "/rust"),
        ]))
    }

    /// As cargo wants them: separated by a character that no path has.
    fn rust_flags(&self) -> String {
        let flags = self.0.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
        flags.collect::<Vec<_>>().join("\u{1f}")
    }

    fn c_flags(&self) -> String {
        let flags = self.0.iter().map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
        flags.collect::<Vec<_>>().join(" ")
    }
}

/// What cargo says of each program that it built, or found as it should be.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    target: Target,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Programs by name, from cargo's messages; those that are about something else have another form.
fn executables(messages: &[u8]) -> BTreeMap<String, PathBuf> {
    let lines = messages.split(|byte| *byte == b'\n');
    let artifacts = lines.filter_map(|line| serde_json::from_slice::<Artifact>(line).ok());
    artifacts.filter_map(|artifact| Some((artifact.target.name, artifact.executable?))).collect()
}

fn examine(path: &Path, bytes: &[u8], build: Build, remapped: &Remapped) -> anyhow::Result<()> {
    ensure!(is_static(bytes).context("it is no program of Linux")?, "it asks for a dynamic loader");
    let help = Command::new(path).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let help = help.with_context(|| format!("failed to start {}", path.display()))?;
    ensure!(help.success(), "`{} --help` ended with {help}", path.display());
    if build == Build::Release {
        for (folder, _) in &remapped.0 {
            let folder = folder.to_string_lossy();
            ensure!(!contains(bytes, folder.as_bytes()), "it names a folder of this machine: {folder}");
        }
    }
    Ok(())
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

/// Whether the text stands somewhere in the bytes.
fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let Some((first, rest)) = text.split_first() else { return true };
    let mut from = bytes;
    while let Some(at) = from.iter().position(|byte| byte == first) {
        from = &from[at + 1..];
        if from.starts_with(rest) {
            return true;
        }
    }
    false
}

fn printed(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("failed to start {program}"))?;
    ensure!(output.status.success(), "{program} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
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
    fn this_test_itself_is_linked_dynamically() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
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
