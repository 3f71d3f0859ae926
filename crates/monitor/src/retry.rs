//! Retries requests that failed with a transient fault.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::fault::Fault;

/// Between two attempts of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Retries a step for at most `patience` after its first failure. The time before the first failure does not count.
pub(crate) async fn retry_transient<T>(
    patience: Duration,
    mut step: impl AsyncFnMut() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let mut until = None;
    let mut pause = FIRST_PAUSE;
    loop {
        match step().await {
            Err(fault)
                if fault.is_transient()
                    && Instant::now() + pause < *until.get_or_insert_with(|| Instant::now() + patience) =>
            {
                warn!("{fault}; it is tried again");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use api::monitor::ExitCode;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again_and_nothing_else() {
        let of = |code| Fault::new(code, "");
        let mut times = 0;
        let done = retry_transient(Duration::from_secs(60), async || {
            times += 1;
            if times < 4 { Err(of(ExitCode::StoreUnreachable)) } else { Ok(times) }
        });
        assert_eq!(done.await, Ok(4));
        let began = Instant::now();
        let never =
            retry_transient(Duration::from_secs(60), async || Err::<(), _>(of(ExitCode::StoreUnreachable)));
        assert_eq!(never.await, Err(of(ExitCode::StoreUnreachable)));
        assert!((50..=60).contains(&began.elapsed().as_secs()));
        let mut times = 0;
        let wrong = retry_transient(Duration::from_secs(60), async || {
            times += 1;
            Err::<(), _>(of(ExitCode::DimMismatch))
        });
        assert_eq!(wrong.await, Err(of(ExitCode::DimMismatch)));
        assert_eq!(times, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_fails_after_a_long_time_is_tried_again_as_well() {
        let mut times = 0;
        let done = retry_transient(Duration::from_secs(60), async || {
            times += 1;
            sleep(Duration::from_secs(if times == 1 { 300 } else { 0 })).await;
            if times < 4 { Err(Fault::new(ExitCode::StoreUnreachable, "")) } else { Ok(times) }
        });
        assert_eq!(done.await, Ok(4));
    }
}
