//! One scrape of the pods of a target, and what follows from it and those before. Metrics of one page share it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
    vec,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use scaling::flow::PodCounts;
use tokio::time::timeout;

use prometheus_api::Fault as ServerFault;

use super::{
    PODS_AT_ONCE, PODS_DEADLINE, WINDOW, arrivals_period,
    rates::{Asked, SharedReading, read_shared},
};
use crate::{
    Context,
    observe::pods_of,
    sources::{
        Fault,
        answer::{self, Answer, Latency},
        engines::{Requests, Scrape, Wanted},
        pods::{self, Batch},
    },
    target::pod::PodView,
    validate::{MetricSource, ScrapePort, ValidScaler},
};

/// What each pod serves under one port and path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Page<'v> {
    port: ScrapePort,
    path: &'v str,
    /// Numbers of the metrics that read it. The order is that of every object, so that no two wait for each other.
    metrics: BTreeMap<&'v Wanted, Vec<usize>>,
}

/// The pages that these metrics read.
pub(super) fn pages<'v>(sources: &'v [MetricSource], indices: &[usize]) -> Vec<Page<'v>> {
    let mut pages: Vec<Page<'v>> = Vec::new();
    for index in indices {
        let Some(MetricSource::Pods { port, path, wanted }) = sources.get(*index) else { continue };
        let known = pages.iter_mut().find(|page| page.port == *port && page.path == path);
        match known {
            Some(page) => page.metrics.entry(wanted).or_default().push(*index),
            None => {
                let metrics = BTreeMap::from([(wanted, vec![*index])]);
                pages.push(Page { port: *port, path, metrics });
            }
        }
    }
    pages
}

/// The answers for the metrics of a page, by number. What another object has read a moment ago is not read again.
pub(super) async fn read_page(
    ctx: &Context,
    valid: &ValidScaler,
    page: &Page<'_>,
    now: Timestamp,
) -> Vec<(usize, Answer)> {
    let metadata = &valid.scaler.metadata;
    let shared_by = |(wanted, indices): (&&Wanted, &Vec<usize>)| {
        let asked = Asked {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            target: valid.reference.identity(),
            port: page.port,
            path: page.path.to_owned(),
            wanted: Wanted::clone(wanted),
        };
        let uid = metadata.uid.as_deref().unwrap_or_default();
        let of_index = |index: &usize| ctx.rates.of(uid, *index, asked.clone());
        indices.iter().map(of_index).last()
    };
    let shared: Vec<_> = page.metrics.iter().filter_map(shared_by).collect();
    let window = valid.policy.behavior.down.window;
    let mut answers = Vec::new();
    let mut add = |indices: &[usize], reading: &SharedReading, answer: Answer| {
        let answer = Answer { flow: reading.meter.flow(window), ..answer };
        answers.extend(indices.iter().map(|index| (*index, answer.clone())));
    };
    let mut due = Vec::new();
    for ((wanted, indices), shared) in page.metrics.iter().zip(&shared) {
        let follows = indices.first().is_some_and(|index| valid.follows_arrivals(*index));
        let sample_period = ctx.configuration.sample_period;
        let period = if follows { arrivals_period(sample_period) } else { sample_period };
        let (reading, answer) = read_shared(shared, period, now).await;
        match answer.or_else(|| reading.of_uncounted(sample_period, period, now)) {
            Some(answer) => add(indices, &reading, answer),
            None => due.push((*wanted, indices, reading)),
        }
    }
    if due.is_empty() {
        return answers;
    }
    let wanted: Vec<&Wanted> = due.iter().map(|(wanted, ..)| *wanted).collect();
    let mut scraped = scrape_pods(ctx, valid, page, &wanted, now).await;
    for (wanted, indices, mut reading) in due {
        let answer = judged(scraped.next(), &scraped.ready, wanted, &mut reading, scraped.times);
        reading.last = Some((now, answer.clone()));
        add(indices, &reading, answer);
    }
    answers
}

/// What was read of the page of each Ready pod.
struct Pages {
    ready: Vec<Arc<PodView>>,
    read: Vec<PodPage>,
    times: Scraping,
}

/// The metrics of one pod, in the order in which they were asked.
struct PodPage {
    pod: Arc<PodView>,
    read: Result<vec::IntoIter<Scrape>, Fault>,
}

impl Pages {
    /// The next metric of each pod.
    fn next(&mut self) -> Vec<(Arc<PodView>, Result<Scrape, Fault>)> {
        let next = |PodPage { pod, read }: &mut PodPage| {
            let read = match read {
                Ok(metrics) => Ok(metrics.next()?),
                Err(fault) => Err(fault.clone()),
            };
            Some((Arc::clone(pod), read))
        };
        self.read.iter_mut().filter_map(next).collect()
    }
}

/// Scrapes the Ready pods of the target.
async fn scrape_pods(
    ctx: &Context,
    valid: &ValidScaler,
    page: &Page<'_>,
    wanted: &[&Wanted],
    now: Timestamp,
) -> Pages {
    let pods = pods_of(ctx, valid);
    // Pods that end count nowhere, and may not answer although they are Ready still.
    let serves = |pod: &Arc<PodView>| pod.is_ready && pod.metadata.deletion_timestamp.is_none();
    let ready: Vec<Arc<PodView>> = pods.into_iter().filter(serves).collect();
    let batch = Batch::new(&ctx.bodies, valid.scaler.metadata.namespace.as_deref().unwrap_or_default());
    let mut scrapes = stream::iter(ready.clone())
        .map(|pod| scrape_pod(&batch, pod, page, wanted))
        .buffer_unordered(PODS_AT_ONCE);
    let mut scraped = Vec::new();
    let all = async {
        while let Some(scrape) = scrapes.next().await {
            scraped.push(scrape);
        }
    };
    if timeout(PODS_DEADLINE, all).await.is_err() {
        // Those whose turn did not come are missing, and the others are not lost.
        let is_late = |pod: &&Arc<PodView>| !scraped.iter().any(|done: &PodPage| done.pod.uid() == pod.uid());
        let late: Vec<_> = ready.iter().filter(is_late).map(Arc::clone).collect();
        scraped.extend(late.into_iter().map(|pod| {
            let server = format!("pod {}", pod.full_name());
            PodPage { pod, read: Err(ServerFault::Slow { server, limit: PODS_DEADLINE }.into()) }
        }));
    }
    drop(scrapes);
    Pages { ready, read: scraped, times: Scraping { began: now, ended: ctx.clock.now() } }
}

/// When a scrape of all pods began, and when it ended.
#[derive(Clone, Copy)]
struct Scraping {
    began: Timestamp,
    ended: Timestamp,
}

/// The answer of all Ready pods, without what arrives: each AIScaler computes that with its own window.
fn judged(
    scraped: Vec<(Arc<PodView>, Result<Scrape, Fault>)>,
    ready: &[Arc<PodView>],
    wanted: &Wanted,
    reading: &mut SharedReading,
    Scraping { began: now, ended }: Scraping,
) -> Answer {
    let SharedReading { scrapes: kept, meter, is_counted, last: _ } = reading;
    let uids: BTreeSet<&str> = ready.iter().map(|pod| pod.uid()).collect();
    kept.retain(|uid| uids.contains(uid));
    let counts: Vec<PodCounts> =
        scraped.iter().filter_map(|(pod, read)| counts(pod, read.as_ref().ok()?)).collect();
    *is_counted = !counts.is_empty() || ready.is_empty();
    // Its end: what the pods have finished meanwhile is counted.
    meter.observe(&counts, &uids, ended);
    let read = scraped.into_iter().map(|(pod, reading)| {
        let name = pod.full_name();
        let read = reading.and_then(|read| kept.record(pod.uid(), &name, wanted.name(), read.value?, now));
        let is_settled = pod.ready_changed.is_none_or(|since| {
            Duration::try_from(now.duration_since(since)).is_ok_and(|ready| ready >= WINDOW)
        });
        Latency { uid: pod.uid().to_owned(), is_settled, read }
    });
    match wanted.is_latency() {
        true => answer::of_latencies(read.collect()),
        false => answer::of_pods(
            read.map(|Latency { uid, read, .. }| (uid, read.map(|known| known.sample))).collect(),
        ),
    }
}

fn counts(pod: &PodView, read: &Scrape) -> Option<PodCounts> {
    let Requests { waiting, running, finished, tokens } = read.requests?;
    Some(PodCounts { uid: pod.uid().to_owned(), finished, waiting, running, tokens })
}

async fn scrape_pod(batch: &Batch<'_>, pod: Arc<PodView>, page: &Page<'_>, wanted: &[&Wanted]) -> PodPage {
    let name = pod.full_name();
    let port = match page.port {
        ScrapePort::Number(port) => port,
        ScrapePort::OfEngine => pod.metrics_port(),
    };
    let read = async {
        let address = pods::address(&name, pod.ip.as_deref().unwrap_or_default(), port)?;
        let pod = pods::Pod { name: &name, address, path: page.path };
        pods::poll_once(pod, wanted, pods::Limits::default(), batch).await
    };
    let read = read.await.map(Vec::into_iter);
    PodPage { pod, read }
}

#[cfg(test)]
mod tests {
    use scaling::{
        behavior::Window,
        reading::{Milli, Reading},
    };

    use super::*;
    use crate::sources::engines::Scraped;
    use crate::{
        collect::rates::{Asked, Rates},
        sources::engines::Load,
    };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_767_268_800 + seconds).unwrap()
    }

    fn begun(seconds: i64) -> Scraping {
        Scraping { began: at(seconds), ended: at(seconds) }
    }

    fn pod(name: &str) -> Arc<PodView> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: demo, uid: {name}}}, status: {{phase: Running, \
             conditions: [{{type: Ready, status: 'True'}}]}}}}"
        );
        Arc::new(serde_saphyr::from_str::<PodView>(&text).unwrap())
    }

    #[test]
    fn metrics_of_one_page_are_read_together() {
        let of = |port, path: &str, load| MetricSource::Pods {
            port,
            path: path.to_owned(),
            wanted: Wanted::OfEngine(None, load),
        };
        let (engine, other) = (ScrapePort::OfEngine, ScrapePort::Number(9_000));
        let sources = [
            of(engine, "/metrics", Load::TokensPerMinute),
            of(engine, "/metrics", Load::QueueDepth),
            of(other, "/metrics", Load::QueueDepth),
            of(engine, "/metrics", Load::QueueDepth),
            of(engine, "/other", Load::QueueDepth),
        ];
        let pages = pages(&sources, &[0, 1, 2, 3]);
        let indices: Vec<Vec<&[usize]>> =
            pages.iter().map(|page| page.metrics.values().map(Vec::as_slice).collect()).collect();
        assert_eq!(indices, [vec![&[1, 3][..], &[0][..]], vec![&[2][..]]], "in one order everywhere");
    }

    #[tokio::test]
    async fn the_counts_of_scrapes_become_arrivals_and_the_queue_stays_the_value() {
        let wanted = Wanted::OfEngine(None, Load::QueueDepth);
        let asked = Asked {
            namespace: "demo".into(),
            target: "Deployment.apps/chat".into(),
            port: ScrapePort::OfEngine,
            path: "/metrics".into(),
            wanted: wanted.clone(),
        };
        let shared = Rates::default().of("uid", 0, asked);
        let mut reading = shared.lock().await;
        let ready = [pod("a"), pod("b")];
        let mut last = None;
        for seconds in (0..=60).step_by(5) {
            let finished = f64::from(seconds) * 3.0;
            let requests = Requests { waiting: 1.0, running: 4.0, finished, tokens: 0.0 };
            let scrape = Scrape { value: Ok(Scraped::Level(5.0)), requests: Some(requests) };
            let scraped = ready.iter().map(|pod| (Arc::clone(pod), Ok(scrape.clone()))).collect();
            last = Some(judged(scraped, &ready, &wanted, &mut reading, begun(seconds.into())));
        }
        let answer = last.unwrap();
        let Reading::Pods(values) = &answer.reading else { panic!("{answer:?}") };
        assert_eq!(values.iter().map(|pod| pod.value.count()).collect::<Vec<_>>(), [5_000, 5_000]);
        let flow = reading.meter.flow(Window::FIVE_MINUTES).unwrap();
        assert_eq!((flow.rate, flow.waiting), (Milli::units(6), Milli::units(2)));
        assert_eq!(flow.at_a_time, Milli::units(4), "while others wait");
        let level = ready
            .iter()
            .map(|pod| (Arc::clone(pod), Ok(Scrape { value: Ok(Scraped::Level(5.0)), requests: None })))
            .collect();
        judged(level, &ready, &wanted, &mut reading, begun(65));
        assert!(
            reading.meter.flow(Window::FIVE_MINUTES).is_some() && !reading.is_counted,
            "the last complete look is 5 s old"
        );
        let level = ready
            .iter()
            .map(|pod| (Arc::clone(pod), Ok(Scrape { value: Ok(Scraped::Level(5.0)), requests: None })))
            .collect();
        judged(level, &ready, &wanted, &mut reading, begun(85));
        assert_eq!(reading.meter.flow(Window::FIVE_MINUTES), None, "for 25 s the engines have not counted");
    }
}
