//! The two ways in which programs are built.

/// How programs are built, and so what their images are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    Release,
    Dev,
}

impl Build {
    pub(super) fn cargo_profile(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "image-dev",
        }
    }

    pub(super) fn folder(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "dev",
        }
    }

    pub(super) fn tag(self) -> &'static str {
        match self {
            Self::Release => env!("CARGO_PKG_VERSION"),
            Self::Dev => "dev",
        }
    }
}
