use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::{state::LONGEST_RETRY_AFTER, *};

fn key(name: &str) -> Key {
    Key::new("demo", name)
}

fn queue() -> Queue {
    Queue::new(Backoff { jitter: 0.0, ..Backoff::default() }, EventDelays::default())
}

async fn taken_within(queue: &Queue, wait: Duration) -> Option<Key> {
    tokio::time::timeout(wait, queue.take()).await.ok().flatten()
}

const SOON: Duration = Duration::from_millis(1);
/// A timer counts whole milliseconds, and fires in the one after.
const GAP: Duration = Duration::from_millis(101);

#[tokio::test(start_paused = true)]
async fn a_key_added_many_times_runs_once() {
    let queue = queue();
    for _ in 0..5 {
        queue.add(&key("a"), Reason::Event);
    }
    assert_eq!(taken_within(&queue, SOON).await, Some(key("a")));
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, SOON).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_run_runs_again_and_never_in_parallel() {
    let queue = queue();
    queue.add(&key("a"), Reason::Event);
    assert!(taken_within(&queue, SOON).await.is_some());
    queue.add(&key("a"), Reason::Event);
    assert_eq!(taken_within(&queue, SOON).await, None, "still running");
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, GAP).await, Some(key("a")));
}

#[tokio::test(start_paused = true)]
async fn ten_events_within_the_gap_start_two_runs_and_the_second_comes_after_the_last_of_them() {
    let queue = queue();
    let start = Instant::now();
    let mut runs = Vec::new();
    for _ in 0..10 {
        queue.add(&key("a"), Reason::Event);
        if let Some(taken) = taken_within(&queue, SOON).await {
            runs.push(start.elapsed());
            queue.done(&taken, Outcome::Done);
        }
        tokio::time::sleep(Duration::from_millis(8)).await;
    }
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(taken_within(&queue, GAP).await, Some(key("a")));
    assert!(start.elapsed() >= EventDelays::default().gap, "{:?}", start.elapsed());
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None);
    queue.lock().forget_ended(Instant::now(), &EventDelays::default());
    assert!(queue.lock().keys.is_empty() && queue.lock().ended.is_empty(), "quiet keys keep no memory");
}

#[tokio::test(start_paused = true)]
async fn events_that_never_stop_are_seen_once_per_gap() {
    let queue = queue();
    let (start, mut runs) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(10) {
        queue.add(&key("a"), Reason::Event);
        if let Some(taken) = taken_within(&queue, Duration::from_millis(10)).await {
            runs += 1;
            queue.done(&taken, Outcome::Done);
        }
    }
    assert!((80..=101).contains(&runs), "{runs} runs in 100 gaps");
}

#[tokio::test(start_paused = true)]
async fn a_spec_change_waits_for_no_gap_and_takes_the_events_that_wait_with_it() {
    let queue = queue();
    queue.add(&key("a"), Reason::Spec);
    queue.take().await.unwrap();
    queue.add(&key("a"), Reason::Event);
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, SOON).await, None);
    queue.add(&key("a"), Reason::Spec);
    assert_eq!(taken_within(&queue, SOON).await, Some(key("a")));
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_detail_is_seen_in_time_and_together_with_what_follows_it() {
    let queue = queue();
    let start = Instant::now();
    let late = EventDelays::default().detail + Duration::from_millis(1);
    for _ in 0..5 {
        queue.add(&key("a"), Reason::Detail);
        assert_eq!(taken_within(&queue, SOON).await, None);
    }
    assert_eq!(taken_within(&queue, late).await, Some(key("a")));
    assert!(start.elapsed() >= EventDelays::default().detail, "{:?}", start.elapsed());
    queue.add(&key("a"), Reason::Detail);
    queue.done(&key("a"), Outcome::After(Duration::from_secs(600)));
    assert_eq!(taken_within(&queue, late).await, Some(key("a")), "one that comes during a run, too");
    queue.done(&key("a"), Outcome::After(Duration::from_secs(1)));
    queue.add(&key("a"), Reason::Detail);
    assert_eq!(
        taken_within(&queue, Duration::from_millis(1_001)).await,
        Some(key("a")),
        "no later than planned"
    );
    queue.done(&key("a"), Outcome::Done);
    tokio::time::sleep(GAP).await;
    queue.add(&key("a"), Reason::Detail);
    queue.add(&key("a"), Reason::Event);
    assert_eq!(taken_within(&queue, SOON).await, Some(key("a")), "an event takes it with it");
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None);
}

#[tokio::test(start_paused = true)]
async fn changes_overtake_resyncs_but_do_not_starve_them() {
    let queue = queue();
    queue.add(&key("resync"), Reason::Resync);
    for number in 0..40 {
        queue.add(&key(&format!("change-{number:02}")), Reason::Event);
    }
    let mut place = None;
    for pick in 1..=41 {
        let taken = taken_within(&queue, SOON).await.unwrap();
        if taken == key("resync") {
            place = Some(pick);
        }
        queue.done(&taken, Outcome::Done);
    }
    assert_eq!(place, Some(17));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_resync_that_becomes_a_change_runs_once() {
    let queue = queue();
    queue.add(&key("a"), Reason::Resync);
    queue.add(&key("a"), Reason::Spec);
    assert_eq!(taken_within(&queue, SOON).await, Some(key("a")));
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, GAP).await, None);
    queue.lock().forget_ended(Instant::now(), &EventDelays::default());
    assert!(queue.lock().keys.is_empty());
}

#[tokio::test(start_paused = true)]
async fn events_neither_bypass_nor_inflate_the_backoff() {
    let queue = queue();
    let start = Instant::now();
    let mut runs = Vec::new();
    queue.add(&key("a"), Reason::Event);
    // An event every 200 ms for 20 s beside a key that always fails.
    let mut next_event = start + Duration::from_millis(200);
    while start.elapsed() < Duration::from_secs(20) {
        let until_event = next_event.saturating_duration_since(Instant::now());
        if let Some(taken) = taken_within(&queue, until_event).await {
            runs.push(start.elapsed());
            queue.done(&taken, Outcome::Failed { retry_after: None });
        } else {
            queue.add(&key("a"), Reason::Event);
            next_event += Duration::from_millis(200);
        }
    }
    // 0, then 5, 10, 20 … ms after each other: 12 doublings of 5 ms fit into 20 s, whatever the events.
    assert_eq!(runs.len(), 12, "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn a_spec_change_jumps_the_backoff_once_a_second_and_its_failure_does_not_count() {
    let queue = queue();
    queue.add(&key("a"), Reason::Event);
    for _ in 0..14 {
        let taken = queue.take().await.unwrap();
        queue.done(&taken, Outcome::Failed { retry_after: None });
    }
    let failures = queue.lock().keys[&key("a")].failures;
    queue.add(&key("a"), Reason::Spec);
    assert_eq!(taken_within(&queue, SOON).await, Some(key("a")), "the first jump is at once");
    queue.done(&key("a"), Outcome::Failed { retry_after: None });
    assert_eq!(queue.lock().keys[&key("a")].failures, failures);
    queue.add(&key("a"), Reason::Spec);
    assert_eq!(taken_within(&queue, SOON).await, None, "the second one waits for the gap");
    assert_eq!(taken_within(&queue, Duration::from_secs(1)).await, Some(key("a")));
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_is_a_floor() {
    let queue = queue();
    queue.add(&key("a"), Reason::Event);
    queue.take().await.unwrap();
    queue.done(&key("a"), Outcome::Failed { retry_after: Some(Duration::from_secs(7)) });
    assert_eq!(taken_within(&queue, Duration::from_millis(6_990)).await, None);
    assert_eq!(taken_within(&queue, Duration::from_millis(20)).await, Some(key("a")));
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_a_day_is_not_believed() {
    let queue = queue();
    queue.add(&key("a"), Reason::Event);
    queue.take().await.unwrap();
    queue.done(&key("a"), Outcome::Failed { retry_after: Some(Duration::from_secs(86_400)) });
    assert_eq!(taken_within(&queue, LONGEST_RETRY_AFTER).await, Some(key("a")));
}

#[tokio::test(start_paused = true)]
async fn a_jump_that_the_gap_has_put_off_does_not_count_as_a_failure_either() {
    let queue = queue();
    queue.add(&key("a"), Reason::Event);
    for _ in 0..14 {
        let taken = queue.take().await.unwrap();
        queue.done(&taken, Outcome::Failed { retry_after: None });
    }
    let failures = queue.lock().keys[&key("a")].failures;
    for _ in 0..2 {
        queue.add(&key("a"), Reason::Spec);
        assert_eq!(taken_within(&queue, Duration::from_secs(1)).await, Some(key("a")));
        queue.done(&key("a"), Outcome::Failed { retry_after: None });
    }
    assert_eq!(queue.lock().keys[&key("a")].failures, failures);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_to_run_again_runs_at_once_then_ever_more_rarely_and_on_each_event() {
    let queue = queue();
    let mut waits = Vec::new();
    queue.add(&key("a"), Reason::Event);
    for _ in 0..12 {
        let before = Instant::now();
        let taken = queue.take().await.unwrap();
        waits.push(before.elapsed().as_millis());
        queue.done(&taken, Outcome::Again);
    }
    // A timer counts whole milliseconds, and fires in the one after.
    assert!(waits[1] <= 1 && waits.is_sorted() && *waits.last().unwrap() <= 1_001, "{waits:?}");
    queue.add(&key("a"), Reason::Event);
    assert_eq!(taken_within(&queue, SOON).await, Some(key("a")), "it has not failed");
    queue.done(&key("a"), Outcome::Done);
    queue.lock().forget_ended(Instant::now() + GAP, &EventDelays::default());
    assert!(queue.lock().keys.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_requeue_comes_at_its_time_and_a_change_replaces_it() {
    let queue = queue();
    queue.add(&key("a"), Reason::Event);
    queue.take().await.unwrap();
    queue.done(&key("a"), Outcome::After(Duration::from_secs(30)));
    queue.add(&key("a"), Reason::Event);
    assert!(taken_within(&queue, GAP).await.is_some());
    queue.done(&key("a"), Outcome::Done);
    assert_eq!(taken_within(&queue, Duration::from_secs(60)).await, None, "the old timer is gone");
}

#[tokio::test(start_paused = true)]
async fn a_timer_fires_although_the_one_that_waited_for_it_has_left() {
    let queue = Arc::new(queue());
    let wait_for_one = || {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { queue.take().await })
    };
    queue.add(&key("a"), Reason::Detail);
    let (first, second) = (wait_for_one(), wait_for_one());
    tokio::time::sleep(SOON).await;
    first.abort();
    assert!(first.await.is_err());
    let start = Instant::now();
    assert_eq!(second.await.unwrap(), Some(key("a")));
    assert!(start.elapsed() <= EventDelays::default().detail, "{:?}", start.elapsed());
    queue.done(&key("a"), Outcome::After(Duration::from_secs(60)));
    let late = wait_for_one();
    tokio::time::sleep(SOON).await;
    queue.add(&key("b"), Reason::Detail);
    assert_eq!(taken_within(&queue, Duration::from_secs(3)).await, None, "the other one has taken it");
    assert_eq!(late.await.unwrap(), Some(key("b")), "an earlier timer than the one that was waited for");
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_gives_nothing_out() {
    let queue = Arc::new(queue());
    let waiting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move { queue.take().await }
    });
    tokio::task::yield_now().await;
    queue.add(&key("late"), Reason::Resync);
    queue.close();
    queue.add(&key("later"), Reason::Spec);
    assert!(waiting.await.unwrap().is_none_or(|taken| taken == key("late")));
    assert_eq!(queue.take().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_wake_up_is_lost_and_no_key_overlaps_under_random_load() {
    const KEYS: usize = 50;
    let queue = Arc::new(Queue::new(
        Backoff { longest: Duration::from_millis(20), ..Backoff::default() },
        EventDelays { gap: Duration::from_millis(2), detail: Duration::from_millis(5) },
    ));
    let busy: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
    // `wanted` is raised before each add, `seen` is what the last run of the key has read.
    let wanted: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
    let seen: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| AtomicUsize::new(0)).collect());
    let workers: Vec<_> = (0..16)
        .map(|_| {
            let (queue, busy, wanted, seen) =
                (Arc::clone(&queue), Arc::clone(&busy), Arc::clone(&wanted), Arc::clone(&seen));
            tokio::spawn(async move {
                while let Some(taken) = queue.take().await {
                    let index: usize = taken.name.parse().unwrap();
                    assert_eq!(busy[index].fetch_add(1, Ordering::SeqCst), 0, "two runs of one key");
                    let read = wanted[index].load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    busy[index].fetch_sub(1, Ordering::SeqCst);
                    if fastrand::u8(0..10) == 0 {
                        queue.done(&taken, Outcome::Failed { retry_after: None });
                    } else {
                        seen[index].store(read, Ordering::SeqCst);
                        queue.done(&taken, Outcome::Done);
                    }
                }
            })
        })
        .collect();
    let adders: Vec<_> = (0..8)
        .map(|_| {
            let (queue, wanted) = (Arc::clone(&queue), Arc::clone(&wanted));
            tokio::spawn(async move {
                for _ in 0..2_500 {
                    let index = fastrand::usize(0..KEYS);
                    wanted[index].fetch_add(1, Ordering::SeqCst);
                    let reason =
                        [Reason::Resync, Reason::Detail, Reason::Event, Reason::Spec][fastrand::usize(0..4)];
                    queue.add(&key(&index.to_string()), reason);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for adder in adders {
        adder.await.unwrap();
    }
    let all_seen = async {
        while !(0..KEYS)
            .all(|index| seen[index].load(Ordering::SeqCst) == wanted[index].load(Ordering::SeqCst))
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all_seen).await.expect("every add was followed by a run");
    queue.close();
    for worker in workers {
        worker.await.unwrap();
    }
}
