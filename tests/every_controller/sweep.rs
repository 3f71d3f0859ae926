//! Any write may fail: a sample of what `cargo xtask sweep` plays as a whole.

use tests::sweep::{Choice, sweep};

use crate::for_every_controller;

/// As many lives as are played side by side, so that they take the time of one: every mode twice.
const LIVES: usize = 18;

#[tokio::test]
async fn a_write_that_fails_changes_nothing_of_what_comes_out() {
    for_every_controller(async |controller| {
        let swept = sweep(controller, &Choice::Spread(LIVES)).await;
        let report = swept.unwrap_or_else(|error| panic!("{}: {error}", controller.name));
        println!("{}", report.table());
        assert!(report.is_clean(), "the lives that failed are printed above");
    })
    .await;
}
