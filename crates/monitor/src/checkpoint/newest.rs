//! The newest complete checkpoint of a worker.

use std::time::SystemTime;

use super::{
    Finality, MANIFEST,
    choice::Newest,
    numbered,
    storage::{Storage, Text},
};
use crate::fault::Fault;

/// The newest checkpoint that is complete. One whose manifest cannot be read is damaged, and still the state of a worker.
pub(crate) async fn newest(
    storage: &Storage,
    of_worker: &str,
    numbers: &[u64],
    now: SystemTime,
) -> Result<Option<Newest>, Fault> {
    let of = |number: u64, written: SystemTime, is_final| {
        let age = now.duration_since(written).unwrap_or_default();
        Newest { number, age, is_final }
    };
    let mut unreadable = None;
    for number in numbers.iter().rev() {
        match storage.manifest(&format!("{of_worker}/{}/{MANIFEST}", numbered(*number))).await? {
            Text::Missing => {}
            Text::Unreadable(written) => {
                unreadable.get_or_insert(of(*number, written, false));
            }
            Text::Read(Finality { is_final }, written) => return Ok(Some(of(*number, written, is_final))),
        }
    }
    Ok(unreadable)
}
