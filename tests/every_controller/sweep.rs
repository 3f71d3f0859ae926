//! Any write may fail: a sample of what `cargo xtask sweep` plays as a whole.

use tests::sweep::{Choice, Mode, SIDE_BY_SIDE, sweep};

use crate::for_every_controller;

/// Every mode twice.
const RUNS: usize = 2 * Mode::ALL.len();
/// All runs are played side by side, so that they take the time of one.
const _: () = assert!(RUNS <= SIDE_BY_SIDE);

#[tokio::test]
async fn a_write_that_fails_changes_nothing_of_what_comes_out() {
    for_every_controller(async |controller| {
        let swept = sweep(controller, &Choice::Spread(RUNS)).await;
        let report = swept.unwrap_or_else(|error| panic!("{}: {error}", controller.name));
        println!("{}", report.table());
        assert!(report.is_clean(), "the lives that failed are printed above");
    })
    .await;
}
