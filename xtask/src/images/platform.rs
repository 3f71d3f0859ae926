//! The platforms that images are built for.

use std::env;

use anyhow::bail;
use api::controllers::Libc;
use clap::ValueEnum;

/// A processor architecture, on Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Platform {
    #[value(name = "linux/amd64")]
    Amd64,
    #[value(name = "linux/arm64")]
    Arm64,
}

impl Platform {
    /// Linux, whatever this machine runs.
    pub(super) fn of_this_machine() -> anyhow::Result<Self> {
        match env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("images are built on x86_64 and aarch64, and this is {other}"),
        }
    }

    /// As OCI images name it.
    pub(super) fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As Rust and Debian's cross compilers name it.
    pub(super) fn processor(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Rust's target of programs with this C library.
    pub(super) fn target(self, libc: Libc) -> String {
        let environment = match libc {
            Libc::Musl => "musl",
            Libc::Glibc => "gnu",
        };
        format!("{}-unknown-linux-{environment}", self.processor())
    }

    /// The dynamic loader of glibc, which each dynamically linked program names.
    pub(super) fn loader(self) -> &'static str {
        match self {
            Self::Amd64 => "/lib64/ld-linux-x86-64.so.2",
            Self::Arm64 => "/lib/ld-linux-aarch64.so.1",
        }
    }
}
