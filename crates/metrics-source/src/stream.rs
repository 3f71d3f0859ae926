//! `metrics.v1.Metrics`: pushes snapshots to subscribers.
//!
//! One ring of snapshots serves all of them. A subscriber that reads too slowly loses the oldest, so that neither another
//! subscriber nor the memory of the source depends on it. Nothing here measures.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use proto::metrics::v1::{Snapshot, SubscribeRequest, metrics_server::Metrics};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::info;

use crate::places::{Place, Places};

/// Snapshots that are kept for slow subscribers: 16 s at the default interval, and some hundred kilobytes.
const RING: usize = 16;
/// A few controllers with two replicas each; far more than that is a mistake or an attack.
const MOST_SUBSCRIBERS: usize = 64;
/// Of the name in the log.
const LONGEST_NAME: usize = 128;

/// Where snapshots go, and what became of them.
#[derive(Clone)]
pub struct Hub {
    ring: broadcast::Sender<Arc<Snapshot>>,
    latest: watch::Sender<Option<Arc<Snapshot>>>,
    pub counts: Arc<Counts>,
}

/// For the metrics of the source itself.
#[derive(Debug, Default)]
pub struct Counts {
    pub subscribers: AtomicUsize,
    pub sent: AtomicU64,
    /// Snapshots that subscribers did not get because they read too slowly.
    pub dropped: AtomicU64,
    pub refused: AtomicU64,
}

impl Default for Hub {
    fn default() -> Self {
        Self { ring: broadcast::Sender::new(RING), latest: watch::Sender::new(None), counts: Arc::default() }
    }
}

impl Hub {
    pub fn publish(&self, snapshot: Snapshot) {
        let snapshot = Arc::new(snapshot);
        self.latest.send_replace(Some(Arc::clone(&snapshot)));
        // Fails only without subscribers.
        let _ = self.ring.send(snapshot);
    }

    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.latest.borrow().clone()
    }
}

/// The service. Its streams end when `stop` is cancelled.
pub(crate) struct Service {
    hub: Hub,
    stop: CancellationToken,
    when_full: WhenFull,
}

/// How a subscriber beyond the limit is handled.
enum WhenFull {
    /// Each one has a certificate.
    Refused,
    /// Any client can subscribe, so a new one takes the place of an earlier one.
    TakesPlace(Places),
}

/// Counted until it is dropped.
struct Subscriber {
    counts: Arc<Counts>,
    place: Option<Place>,
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.counts.subscribers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service {
    /// For clients that a certificate names.
    pub(crate) fn for_known(hub: Hub, stop: CancellationToken) -> Self {
        Self { hub, stop, when_full: WhenFull::Refused }
    }

    /// For any client that reaches it.
    pub(crate) fn for_anyone(hub: Hub, stop: CancellationToken) -> Self {
        Self { hub, stop, when_full: WhenFull::TakesPlace(Places::new(MOST_SUBSCRIBERS)) }
    }

    fn admitted(&self, address: Option<SocketAddr>) -> Option<Subscriber> {
        let counts = &self.hub.counts;
        let before = counts.subscribers.fetch_add(1, Ordering::Relaxed);
        // If it is refused, its drop reverts the count.
        let mut subscriber = Subscriber { counts: Arc::clone(counts), place: None };
        match &self.when_full {
            WhenFull::Refused => (before < MOST_SUBSCRIBERS).then_some(subscriber),
            WhenFull::TakesPlace(places) => {
                subscriber.place = Some(places.take(address.map(|address| address.ip().to_canonical())));
                Some(subscriber)
            }
        }
    }
}

/// What one subscriber has got.
struct Position {
    subscriber: Subscriber,
    ring: broadcast::Receiver<Arc<Snapshot>>,
    first: Option<Arc<Snapshot>>,
    min_interval: Duration,
    /// Sequence and uptime of the last snapshot, and the sequence of its last event.
    last: Option<(u64, Duration, u64)>,
}

#[tonic::async_trait]
impl Metrics for Service {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<Snapshot, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: Request<SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let address = request.remote_addr();
        let SubscribeRequest { subscriber: name, min_interval } = request.into_inner();
        let min_interval = match min_interval.map(Duration::try_from) {
            None => Duration::ZERO,
            Some(Ok(interval)) => interval,
            Some(Err(_)) => return Err(Status::invalid_argument("min_interval is negative")),
        };
        let Some(subscriber) = self.admitted(address) else {
            self.hub.counts.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Status::resource_exhausted(format!(
                "there are {MOST_SUBSCRIBERS} subscribers already"
            )));
        };
        let name = text::printable(&text::cut(name, LONGEST_NAME));
        info!(name, address = address.map(tracing::field::display), "subscriber");
        // The ring first: what is published in between is in both, and skipped once.
        let ring = self.hub.ring.subscribe();
        let lost = subscriber.place.as_ref().map(|place| place.lost.clone());
        let position = Position { subscriber, ring, first: self.hub.latest(), min_interval, last: None };
        let snapshots = stream::unfold(position, |mut position| async {
            let snapshot = position.next().await?;
            position.subscriber.counts.sent.fetch_add(1, Ordering::Relaxed);
            Some((Ok(Snapshot::clone(&snapshot)), position))
        });
        let stop = self.stop.clone();
        let end = async move {
            tokio::select! {
                () = stop.cancelled() => Status::unavailable("the source stops"),
                () = until_lost(lost) => Status::resource_exhausted("a later subscriber has its place"),
            }
        };
        let end = end.shared();
        let ended = stream::once(end.clone().map(Err));
        Ok(Response::new(Box::pin(snapshots.take_until(end).chain(ended))))
    }
}

async fn until_lost(place: Option<CancellationToken>) {
    match place {
        Some(lost) => lost.cancelled().await,
        None => std::future::pending().await,
    }
}

impl Position {
    /// The next snapshot that the subscriber wants; nothing when there will be none.
    async fn next(&mut self) -> Option<Arc<Snapshot>> {
        loop {
            let snapshot = match self.first.take() {
                Some(first) => first,
                None => match self.ring.recv().await {
                    Ok(snapshot) => snapshot,
                    Err(broadcast::error::RecvError::Lagged(lost)) => {
                        self.subscriber.counts.dropped.fetch_add(lost, Ordering::Relaxed);
                        continue;
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
            };
            if self.wants(&snapshot) {
                return Some(snapshot);
            }
        }
    }

    fn wants(&mut self, snapshot: &Snapshot) -> bool {
        let uptime = snapshot.uptime.and_then(|uptime| Duration::try_from(uptime).ok()).unwrap_or_default();
        let event = snapshot.events.last().map_or(0, |event| event.sequence);
        if let Some((last, at, last_event)) = self.last
            && (snapshot.sequence <= last
                || uptime.saturating_sub(at) < self.min_interval && event <= last_event)
        {
            return false;
        }
        self.last = Some((snapshot.sequence, uptime, event));
        true
    }
}

#[cfg(test)]
mod tests {
    use proto::metrics::v1::Event;

    use super::*;

    fn snapshot(sequence: u64, event: u64) -> Snapshot {
        let events = (1..=event).map(|sequence| Event { sequence, ..Event::default() }).collect();
        let uptime = Some(prost_types::Duration { seconds: sequence as i64, nanos: 0 });
        Snapshot { sequence, uptime, events, ..Snapshot::default() }
    }

    async fn subscribed(
        hub: &Hub,
        min_interval: i64,
    ) -> impl Stream<Item = Result<Snapshot, Status>> + use<> {
        let service = Service::for_known(hub.clone(), CancellationToken::new());
        let min_interval = Some(prost_types::Duration { seconds: min_interval, nanos: 0 });
        let request = SubscribeRequest { subscriber: "test".to_owned(), min_interval };
        service.subscribe(Request::new(request)).await.unwrap().into_inner()
    }

    async fn sequences(stream: impl Stream<Item = Result<Snapshot, Status>>, count: usize) -> Vec<u64> {
        stream.take(count).map(|snapshot| snapshot.unwrap().sequence).collect().await
    }

    #[tokio::test]
    async fn a_subscriber_gets_the_latest_snapshot_at_once_and_then_each_new_one() {
        let hub = Hub::default();
        hub.publish(snapshot(6, 0));
        hub.publish(snapshot(7, 0));
        let stream = subscribed(&hub, 0).await;
        hub.publish(snapshot(8, 0));
        hub.publish(snapshot(9, 0));
        assert_eq!(sequences(stream, 3).await, [7, 8, 9]);
    }

    #[tokio::test]
    async fn a_slow_subscriber_loses_the_oldest_snapshots_and_they_are_counted() {
        let hub = Hub::default();
        let slow = subscribed(&hub, 0).await;
        for sequence in 1..=100 {
            hub.publish(snapshot(sequence, 0));
        }
        assert_eq!(sequences(slow, 2).await, [85, 86]);
        assert_eq!(hub.counts.dropped.load(Ordering::Relaxed), 84);
        assert_eq!(hub.ring.len(), 0, "the ring holds nothing for subscribers that are gone");
    }

    #[tokio::test]
    async fn a_subscriber_that_wants_fewer_snapshots_still_gets_each_event_at_once() {
        let hub = Hub::default();
        let stream = subscribed(&hub, 10).await;
        for sequence in 1..=25 {
            hub.publish(snapshot(sequence, u64::from(sequence >= 14)));
            // The ring is shorter than this test.
            if sequence == 15 {
                break;
            }
        }
        assert_eq!(sequences(stream, 3).await, [1, 11, 14]);
    }

    #[tokio::test]
    async fn subscribers_are_limited_and_a_place_is_free_again_when_one_goes() {
        let hub = Hub::default();
        let mut streams = Vec::new();
        for _ in 0..MOST_SUBSCRIBERS {
            streams.push(subscribed(&hub, 0).await);
        }
        let service = Service::for_known(hub.clone(), CancellationToken::new());
        let refused = service.subscribe(Request::new(SubscribeRequest::default())).await;
        assert_eq!(refused.map(|_| ()).unwrap_err().code(), tonic::Code::ResourceExhausted);
        streams.pop();
        drop(subscribed(&hub, 0).await);
        drop(streams);
        assert_eq!(hub.counts.subscribers.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn idle_subscribers_without_a_certificate_keep_no_other_one_out() {
        let hub = Hub::default();
        let service = Service::for_anyone(hub.clone(), CancellationToken::new());
        let subscribe = async || {
            let request = Request::new(SubscribeRequest::default());
            service.subscribe(request).await.unwrap().into_inner()
        };
        let mut idle = Vec::new();
        for _ in 0..MOST_SUBSCRIBERS {
            idle.push(subscribe().await);
        }
        let late = subscribe().await;
        hub.publish(snapshot(7, 0));
        assert_eq!(sequences(late, 1).await, [7]);
        let ends: Vec<_> = idle.remove(0).collect().await;
        assert_eq!(ends.last().unwrap().as_ref().unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert_eq!(sequences(idle.remove(0), 1).await, [7]);
        drop(idle);
        assert_eq!(hub.counts.subscribers.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_stop_ends_the_stream_with_unavailable() {
        let hub = Hub::default();
        let stop = CancellationToken::new();
        let service = Service::for_known(hub, stop.clone());
        let stream = service.subscribe(Request::new(SubscribeRequest::default())).await.unwrap().into_inner();
        stop.cancel();
        let ends: Vec<_> = stream.collect().await;
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0].as_ref().unwrap_err().code(), tonic::Code::Unavailable);
    }
}
