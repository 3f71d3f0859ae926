//! Names of a TrainingJob's children.

use workload::{digest::digest, name};

/// Value of the label `app.kubernetes.io/name` on every child.
pub(crate) const KIND: &str = "trainingjob";

/// The Job of an attempt. Its pods are named after it with their index, and their host names have at most 63 characters.
pub(crate) fn attempt(name: &str, attempt: i32) -> String {
    name::with_suffix_within(name, &format!("-{attempt}"), LONGEST_JOB)
}

/// The headless Service of a gang.
pub(crate) fn service(name: &str) -> String {
    name::with_suffix(&name::service(name), "-gang")
}

/// Host name of a pod of an attempt's Job.
pub(crate) fn host(job: &str, rank: i32) -> String {
    format!("{job}-{rank}")
}

/// The claim of the output.
pub(crate) fn claim(name: &str) -> String {
    name::with_suffix(name, "-output")
}

/// The Job that uploads the result.
pub(crate) fn upload(name: &str) -> String {
    name::with_suffix_within(name, "-upload", LONGEST_JOB)
}

/// The Job that tries the store of the upload before the first attempt.
pub(crate) fn upload_check(name: &str) -> String {
    name::with_suffix_within(name, "-upload-check", LONGEST_JOB)
}

/// The attempt that a Job of this name is, if it is one of the TrainingJob of that name. Its label may be taken off.
pub(crate) fn attempt_of(job: &str, name: &str) -> Option<i32> {
    let number = job.rsplit('-').next()?.parse().ok()?;
    (attempt(name, number) == job).then_some(number)
}

/// The VolumeSnapshot of the output. A later job of the same name makes another one.
pub(crate) fn snapshot(name: &str, uid: &str) -> String {
    name::with_suffix(name, &format!("-{}", digest(uid, SNAPSHOT_DIGEST)))
}

/// Bytes of the digest in the name of a VolumeSnapshot.
const SNAPSHOT_DIGEST: usize = 4;
/// 63 without the index of a pod, at most `-63`: a host name is not shortened. Kubernetes shortens the name of a pod to 58
/// characters and appends a random suffix, so a long name loses the index.
const LONGEST_JOB: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_fit_for_every_name_attempt_and_rank() {
        let long = "a".repeat(63);
        for name in ["7b.qwen", "qwen-lora", &long] {
            let job = attempt(name, 1_000_000);
            assert!(job.ends_with("-1000000") && host(&job, 63).len() <= 63, "{job}");
            assert!(upload_check(name).len() <= 60);
            assert!(upload(name).len() <= 60 && service(name).len() <= 63 && claim(name).len() <= 63);
            assert_ne!(attempt(name, 1), attempt(name, 11));
        }
        assert_eq!(attempt("qwen-lora", 2), "qwen-lora-2");
    }

    #[test]
    fn the_name_of_a_job_says_which_attempt_it_is() {
        let long = "a".repeat(63);
        for name in ["7b.qwen", "qwen-lora", "qwen-2", &long] {
            for number in [1, 12, 1_000_000] {
                assert_eq!(attempt_of(&attempt(name, number), name), Some(number), "{name}");
            }
            for other in [upload(name), upload_check(name), format!("{name}-01"), name.to_owned()] {
                assert_eq!(attempt_of(&other, name), None, "{other}");
            }
        }
        assert_eq!(attempt_of("qwen-2-1", "qwen"), None, "of another TrainingJob");
    }
}
