//! Which controller has which life.

use api::controllers::Controller;

use crate::{dispatcher, inference, lives::Life, scaler, training};

/// The script of each controller, in any order.
const LIVES: &[fn() -> Life] = &[
    dispatcher::life,
    inference::endpoint::life,
    inference::evaluation::life,
    inference::life,
    scaler::life,
    training::life,
];

/// The script of this controller.
pub fn life_of(controller: &Controller) -> Life {
    let life = LIVES.iter().map(|life| life()).find(|life| life.controller == controller.name);
    life.unwrap_or_else(|| {
        panic!("{} has no life: add a row to LIVES in tests/src/table.rs", controller.name)
    })
}
