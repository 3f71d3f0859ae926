//! Repeats of one measurement: a table of each, and of the medians.

use crate::{
    figures::{Figure, medians, table},
    machine,
};

/// Prints the figures of each run, with the load of the machine before and after it.
pub(crate) async fn repeat(
    runs: u32,
    title: &str,
    measure: impl AsyncFn() -> anyhow::Result<Vec<Figure>>,
) -> anyhow::Result<()> {
    let mut measured = Vec::new();
    for run in 1..=runs {
        let began = machine::condition()?;
        let figures = measure().await?;
        println!("{}", table(&format!("{title}, run {run} of {runs}"), &figures));
        println!("begin: {began}\nend:   {}\n", machine::condition()?);
        measured.push(figures);
    }
    if measured.len() > 1 {
        println!("{}", table(&format!("medians of {runs} runs"), &medians(&measured)));
    }
    Ok(())
}
