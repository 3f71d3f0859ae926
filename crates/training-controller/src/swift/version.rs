//! Versions of ms-swift, as far as its command line depends on them. Pure.

use std::fmt;

/// Major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u16,
    minor: u16,
}

/// Assumed for images whose tag does not say it: that of the default image for NVIDIA.
pub(super) const NEWEST: Version = Version { major: 4, minor: 4 };

impl Version {
    /// `4.1` or `v4.1`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.strip_prefix('v').unwrap_or(text).split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// By the tag of an image: `…-swift4.4.3` as ModelScope's images have it, `v4.3.0-…` as those for Ascend. The newest one if
    /// the tag does not say it.
    pub(crate) fn of_image(image: &str) -> Self {
        let name = image.split('@').next().unwrap_or_default();
        let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map_or("", |(_, tag)| tag);
        let named = tag.rsplit_once("swift").map(|(_, rest)| rest).unwrap_or(tag);
        Self::leading(named).unwrap_or(NEWEST)
    }

    /// `4.3.0-A2` is 4.3.
    fn leading(text: &str) -> Option<Self> {
        let text = text.trim_start_matches(['-', '_']);
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts = text.split(|c: char| !c.is_ascii_digit());
        let (major, minor) = (parts.next()?, parts.next()?);
        (text.as_bytes().get(major.len()) == Some(&b'.'))
            .then(|| Self::parse(&format!("{major}.{minor}")))
            .flatten()
    }

    /// `--train_type` in 3, `--tuner_type` from 4 on.
    pub(super) fn tuner_flag(self) -> &'static str {
        if self.major < 4 { "--train_type" } else { "--tuner_type" }
    }

    /// The first one with these flags.
    pub(super) const FIRST: Self = Self { major: 3, minor: 0 };
    pub(super) const FIRST_WITH_PPO: Self = Self { major: 3, minor: 1 };
    pub(super) const FIRST_WITH_REFERENCE_ADAPTERS: Self = Self { major: 3, minor: 8 };

    /// Of PPO: `--response_length` until 3.5.
    pub(super) fn completion_length_flag(self) -> &'static str {
        if self < (Self { major: 3, minor: 6 }) { "--response_length" } else { "--max_completion_length" }
    }

    /// The callback that saves a checkpoint and ends the training, from 4.0 on.
    pub(super) fn has_graceful_exit(self) -> bool {
        self.major >= 4
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_tag_of_the_usual_images() {
        for (image, version) in [
            (
                "example.com/modelscope:ubuntu22.04-cuda13.0.3-py312-torch2.11.0-modelscope1.39.0-swift4.4.3",
                "4.4",
            ),
            ("quay.io/ascend/ms-swift:v4.3.0-A2-py311-CANN9.0.0-ubuntu22.04", "4.3"),
            ("example.com/ms-swift:3.12.4", "3.12"),
            ("example.com:5000/ms-swift:swift-v3.5", "3.5"),
            ("example.com/ms-swift@sha256:abc", "4.4"),
            ("example.com/ms-swift", "4.4"),
            ("example.com/ms-swift:latest", "4.4"),
            ("example.com/ms-swift:2026", "4.4"),
        ] {
            assert_eq!(Version::of_image(image).to_string(), version, "{image}");
        }
    }

    #[test]
    fn an_image_without_a_version_is_taken_for_the_default_image() {
        assert_eq!(Version::of_image(crate::TRAINER_IMAGE), NEWEST);
    }

    #[test]
    fn a_version_of_a_spec_may_have_a_v() {
        assert_eq!(
            [Version::parse("v3.12"), Version::parse("4.0")].map(|one| one.unwrap().to_string()),
            ["3.12", "4.0"]
        );
        assert_eq!([Version::parse("4"), Version::parse("x.1"), Version::parse("4.99999")], [None; 3]);
    }
}
