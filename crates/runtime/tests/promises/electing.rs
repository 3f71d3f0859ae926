//! Never two leaders at once, and never without one for long: races for a Lease, and faults of the Lease itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use http::{HeaderValue, header};
use k8s_openapi::api::coordination::v1::Lease;
use runtime::{
    client::{Deadlines, LeaderGuard, WriteGuard, build},
    clock::Clock,
    process::lease::{Elector, Timings},
    watch::{Scope, Watches, cache::Cache},
};
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    fake::{Answer, Gate, On, ScriptedApi, Verb},
    given::{STALL, client, config, metrics, timings, within_patience},
};

/// The defaults, divided by 5: the API counts a lease in whole seconds.
const TIMES: Timings = Timings {
    duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry: Duration::from_millis(400),
};

/// For upper bounds: a standby that waits for two leases is later than one lease and `STALL`.
const LONG: Timings = Timings {
    duration: Duration::from_secs(12),
    renew_deadline: Duration::from_secs(8),
    retry: Duration::from_millis(1_600),
};

/// For leaders that shall lose.
const SHORT: Timings = Timings {
    duration: Duration::from_secs(1),
    renew_deadline: Duration::from_millis(600),
    retry: Duration::from_millis(100),
};

/// So slow that within a test only a watch can be what wakes a standby.
const SLOW: Timings = Timings {
    duration: Duration::from_secs(600),
    renew_deadline: Duration::from_secs(400),
    retry: Duration::from_secs(200),
};

/// For many contenders on one busy machine.
const RACE: Timings = Timings { retry: Duration::from_millis(800), ..TIMES };

const HOLDERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// One replica: its own client, which the fake knows by name, and its own guard.
struct Replica {
    elector: Elector,
    guard: LeaderGuard,
    seen: Cache<Lease>,
}

/// The watch that wakes all contenders of one Lease.
struct LeaseWatch {
    seen: Cache<Lease>,
    _watches: Watches,
}

impl LeaseWatch {
    fn start(fake: &ScriptedApi, lease: &str) -> Self {
        let mut watches = Watches::new(client(fake), timings(), metrics());
        let fields = Some(format!("metadata.name={lease}"));
        let seen = watches.watch::<Lease>("Lease", Scope { fields, ..Scope::default() });
        watches.start(&CancellationToken::new());
        Self { seen, _watches: watches }
    }

    fn replica(&self, fake: &ScriptedApi, lease: &str, name: &'static str, timings: Timings) -> Replica {
        let mut config = config(fake);
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(name)));
        let client =
            build(&config, Deadlines::default(), WriteGuard::Always, metrics(), Clock::default()).unwrap();
        let guard = LeaderGuard::default();
        let elector = Elector::new(client, "demo", lease, name.to_owned(), timings, guard.clone());
        Replica { elector, guard, seen: self.seen.clone() }
    }
}

/// A replica that leads, and what it needs for that.
async fn leader() -> (ScriptedApi, LeaseWatch, Replica) {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let mut replica = watch.replica(&fake, "l", "a", TIMES);
    replica.lead().await;
    (fake, watch, replica)
}

impl Replica {
    async fn lead(&mut self) {
        let never = CancellationToken::new();
        assert!(within_patience("leadership", self.elector.lead(&self.seen, &never)).await);
    }

    async fn hold(&mut self) {
        within_patience("the loss", self.elector.hold()).await;
    }
}

fn leases(verb: Verb) -> On {
    verb.of("leases")
}

fn holder(fake: &ScriptedApi, lease: &str) -> Value {
    fake.stored("leases", lease).map(|lease| lease["spec"]["holderIdentity"].clone()).unwrap_or_default()
}

/// A Lease as some other program would write it.
fn lease_of(holder: &str, renewed: &str, seconds: i32) -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": "l"},
        "spec": {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": seconds},
    })
}

/// Counts leaders, and looks into every other replica's guard, at the moment at which one begins to lead.
struct Referee {
    leading: AtomicUsize,
    guards: Vec<LeaderGuard>,
}

impl Referee {
    fn begins(&self, me: usize) {
        assert_eq!(self.leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders at once");
        for (other, guard) in self.guards.iter().enumerate() {
            assert!(other == me || !guard.may_write(), "{} may still write", HOLDERS[other]);
        }
        assert!(self.guards[me].may_write());
    }

    fn ends(&self) {
        self.leading.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Eight contenders; each leads once and gives the Lease away. Returns how often one of them led.
async fn race(fake: Arc<ScriptedApi>, lease: String) -> usize {
    let watch = LeaseWatch::start(&fake, &lease);
    let mut replicas = HOLDERS.map(|name| watch.replica(&fake, &lease, name, RACE));
    let guards = replicas.iter().map(|replica| replica.guard.clone()).collect();
    let referee = Referee { leading: AtomicUsize::new(0), guards };
    let contend = async |(me, replica): (usize, &mut Replica)| {
        replica.lead().await;
        referee.begins(me);
        // Long enough for another contender to come in between, if one could.
        tokio::task::yield_now().await;
        referee.ends();
        replica.elector.release().await;
    };
    join_all(replicas.iter_mut().enumerate().map(contend)).await.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_contenders_start_at_once_and_lead_one_after_the_other() {
    let fake = Arc::new(ScriptedApi::start().await);
    let races = (0..20).map(|number| tokio::spawn(race(Arc::clone(&fake), format!("race-{number}"))));
    let led: usize = join_all(races).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(led, 20 * HOLDERS.len());
}

/// Eight contenders for the Lease of a holder that is dead; the first one keeps it.
async fn race_for_the_lease_of_a_dead_holder() {
    let fake = ScriptedApi::start().await;
    let since = Instant::now();
    fake.put_json("leases", lease_of("dead", "2020-01-01T00:00:00.000000Z", 3));
    let watch = LeaseWatch::start(&fake, "l");
    let mut replicas = HOLDERS.map(|name| watch.replica(&fake, "l", name, RACE));
    let guards = replicas.iter().map(|replica| replica.guard.clone()).collect();
    let referee = Referee { leading: AtomicUsize::new(0), guards };
    let begun = Notify::new();
    let contend = async |(me, replica): (usize, &mut Replica)| {
        // A machine that is busy enough may take the lease away from who won it.
        loop {
            replica.lead().await;
            assert!(since.elapsed() >= RACE.duration, "its last promise was broken");
            referee.begins(me);
            begun.notify_one();
            replica.hold().await;
            referee.ends();
        }
    };
    // Each renewal wakes every loser, so that all of them have tried by then.
    let settled = async {
        within_patience("a leader", begun.notified()).await;
        let written = fake.calls(leases(Verb::Update)).len();
        fake.until_called(leases(Verb::Update), written + 3).await;
    };
    tokio::select! {
        _ = join_all(replicas.iter_mut().enumerate().map(contend)) => {}
        () = settled => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_eight_contenders_replaces_a_dead_holder_and_stays() {
    let races = (0..20).map(|_| tokio::spawn(race_for_the_lease_of_a_dead_holder()));
    for ended in join_all(races).await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_released_lease_has_a_new_leader_within_a_second() {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, SLOW));
    a.lead().await;
    let standby = tokio::spawn(async move {
        b.lead().await;
        Instant::now()
    });
    fake.until_called(leases(Verb::Get).by("b"), 1).await;
    fake.until_called(leases(Verb::Watch), 1).await;
    a.elector.release().await;
    let released = Instant::now();
    assert!(!a.guard.may_write());
    let led = within_patience("the new leader", standby).await.unwrap();
    assert!(led.saturating_duration_since(released) <= Duration::from_secs(1) + STALL);
    assert_eq!(holder(&fake, "l"), "b");
}

#[tokio::test]
async fn a_silent_leader_is_replaced_after_its_lease_and_not_before() {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, LONG));
    a.lead().await;
    let written = fake.until_called(leases(Verb::Create).by("a"), 1).await[0].at;
    // Killed: it neither renews nor releases.
    b.lead().await;
    let waited = written.elapsed();
    assert!(waited >= LONG.duration, "{waited:?}");
    assert!(waited <= LONG.duration + STALL, "{waited:?}");
    assert!(!a.guard.may_write());
}

#[tokio::test]
async fn a_standby_whose_watch_is_blind_replaces_a_silent_leader_as_soon() {
    let fake = ScriptedApi::start().await;
    fake.always(leases(Verb::List), Answer::status(500, "InternalError", "no leader"));
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, LONG));
    a.lead().await;
    let standby = tokio::spawn(async move {
        b.lead().await;
        Instant::now()
    });
    fake.until_called(leases(Verb::Get).by("b"), 1).await;
    // It renews for a while, and is killed then.
    let renewing = tokio::spawn(async move { a.hold().await });
    fake.until_called(leases(Verb::Update).by("a"), 2).await;
    renewing.abort();
    assert!(renewing.await.is_err(), "it still leads when it is killed");
    let last = fake.calls(leases(Verb::Update).by("a")).last().unwrap().at;
    let led = within_patience("the new leader", standby).await.unwrap();
    assert!(led - last >= LONG.duration - LONG.retry, "{:?}", led - last);
    assert!(led - last <= LONG.duration + STALL, "{:?}", led - last);
}

/// A leader whose calls fail in this way from now on has lost at its renew deadline, before a standby leads.
async fn assert_loses_in_time(faults: &[(Verb, Answer)]) {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, SHORT));
    a.lead().await;
    let guard = a.guard.clone();
    for (verb, answer) in faults {
        fake.always(leases(*verb).by("a"), answer.clone());
    }
    let standby = tokio::spawn(async move {
        b.lead().await;
        (Instant::now(), guard.may_write())
    });
    a.hold().await;
    let lost = Instant::now();
    assert!(!a.guard.may_write(), "its guard closes with the loss");
    let (led, both) = within_patience("the new leader", standby).await.unwrap();
    assert!(!both && lost < led, "two leaders at once");
}

#[tokio::test]
async fn a_leader_whose_renewals_hang_loses_at_its_deadline() {
    assert_loses_in_time(&[(Verb::Update, Answer::NoHeaders)]).await;
}

#[tokio::test]
async fn a_renewal_that_is_never_answered_does_not_cost_the_leadership() {
    /// The next renewal has three seconds until the deadline.
    const OFTEN: Timings = Timings { retry: TIMES.retry, ..LONG };
    for verb in [Verb::Get, Verb::Update] {
        let fake = ScriptedApi::start().await;
        let watch = LeaseWatch::start(&fake, "l");
        let mut a = watch.replica(&fake, "l", "a", OFTEN);
        a.lead().await;
        let guard = a.guard.clone();
        fake.next(leases(verb).by("a"), [Answer::NoHeaders]);
        let holding = tokio::spawn(async move { a.hold().await });
        let written = fake.until_called(leases(Verb::Update).by("a"), 3).await;
        assert!(!holding.is_finished() && guard.may_write());
        // The unanswered one took half of the time until the deadline; the next one came before it.
        let led_until = fake.calls(leases(Verb::Create).by("a"))[0].at + OFTEN.renew_deadline;
        let answered = usize::from(verb == Verb::Update);
        assert!(written[answered].at < led_until, "{verb:?}");
    }
}

#[tokio::test]
async fn a_stop_during_the_write_that_wins_leaves_the_lease_free() {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let mut a = watch.replica(&fake, "l", "a", TIMES);
    let gate = Gate::default();
    fake.next(leases(Verb::Create).by("a"), [Answer::Late(gate.clone())]);
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let standby = tokio::spawn(async move {
        a.elector.lead(&a.seen, &stopping).await;
        a.elector.release().await;
    });
    fake.until_called(leases(Verb::Create).by("a"), 1).await;
    assert_eq!(holder(&fake, "l"), "a", "the server has carried it out");
    stop.cancel();
    gate.open();
    within_patience("the end", standby).await.unwrap();
    assert_eq!(holder(&fake, "l"), "");
}

#[tokio::test]
async fn a_leader_whose_renewals_fail_loses_at_its_deadline() {
    assert_loses_in_time(&[(Verb::Update, Answer::status(500, "InternalError", "etcdserver: no leader"))])
        .await;
}

#[tokio::test]
async fn a_leader_that_cannot_read_its_lease_loses_at_its_deadline() {
    assert_loses_in_time(&[(Verb::Get, Answer::NoHeaders)]).await;
    assert_loses_in_time(&[(Verb::Get, Answer::status(403, "Forbidden", "no"))]).await;
}

#[tokio::test]
async fn a_leader_whose_renewals_always_collide_loses_at_its_deadline() {
    assert_loses_in_time(&[(Verb::Update, Answer::status(409, "Conflict", "the object has been modified"))])
        .await;
}

#[tokio::test]
async fn a_leader_counts_its_time_from_the_request_and_not_from_the_answer() {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, TIMES));
    // Most of the renew deadline passes before the answer to the write that makes it the leader.
    let slow = Answer::Slow(TIMES.renew_deadline * 3 / 4);
    fake.next(leases(Verb::Create).by("a"), [slow]);
    for verb in [Verb::Get, Verb::Update] {
        // The first look is answered, and no call after that write.
        fake.next(leases(verb).by("a"), [Answer::Stored]);
        fake.always(leases(verb).by("a"), Answer::NoHeaders);
    }
    let guard = a.guard.clone();
    let leading = tokio::spawn(async move {
        a.lead().await;
        a.hold().await;
        Instant::now()
    });
    fake.until_called(leases(Verb::Create).by("a"), 1).await;
    let standby = tokio::spawn(async move {
        b.lead().await;
        (Instant::now(), guard.may_write())
    });
    let lost = within_patience("the loss", leading).await.unwrap();
    let (led, both) = within_patience("the new leader", standby).await.unwrap();
    assert!(!both && lost < led, "two leaders at once");
}

#[tokio::test]
async fn a_lease_that_is_deleted_while_it_is_held_stays_with_its_holder() {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, TIMES));
    a.lead().await;
    let guard = a.guard.clone();
    let standby = tokio::spawn(async move {
        b.lead().await;
        guard.may_write()
    });
    fake.until_called(leases(Verb::Get).by("b"), 1).await;
    fake.until_called(leases(Verb::Watch), 1).await;
    fake.remove("leases", "l");
    let holding = tokio::spawn(async move {
        a.hold().await;
        a
    });
    // It takes its lease again with the next renewal, and the standby has seen the deletion by then.
    fake.until_called(leases(Verb::Create).by("a"), 2).await;
    assert_eq!(holder(&fake, "l"), "a");
    assert!(fake.calls(leases(Verb::Create).by("b")).is_empty(), "the holder's time had not run out");
    fake.until_called(leases(Verb::Update).by("a"), 1).await;
    assert!(!holding.is_finished());
    holding.abort();
    assert!(!within_patience("the new leader", standby).await.unwrap(), "two leaders at once");
}

#[tokio::test]
async fn a_lease_that_is_deleted_after_its_holder_died_is_taken_when_its_time_is_over() {
    let fake = ScriptedApi::start().await;
    let since = Instant::now();
    fake.put_json("leases", lease_of("dead", "2020-01-01T00:00:00.000000Z", 1));
    let watch = LeaseWatch::start(&fake, "l");
    let mut b = watch.replica(&fake, "l", "b", TIMES);
    let standby = tokio::spawn(async move { b.lead().await });
    fake.until_called(leases(Verb::Get).by("b"), 1).await;
    fake.remove("leases", "l");
    within_patience("the new leader", standby).await.unwrap();
    assert!(since.elapsed() >= Duration::from_secs(1));
    assert_eq!(holder(&fake, "l"), "b");
}

#[tokio::test]
async fn a_leader_that_finds_another_holder_in_its_lease_has_lost_at_once() {
    let (fake, _watch, mut a) = leader().await;
    fake.put_json("leases", lease_of("another", "2020-01-01T00:00:00.000000Z", 3));
    let since = Instant::now();
    a.hold().await;
    assert!(since.elapsed() < TIMES.renew_deadline, "it does not wait for its deadline");
    assert!(!a.guard.may_write());
    a.elector.release().await;
    assert_eq!(holder(&fake, "l"), "another", "and it gives nothing away that is not its own");
    assert!(fake.calls(leases(Verb::Update)).is_empty());
}

#[tokio::test]
async fn a_leader_that_loses_the_race_for_a_renewal_has_lost_at_once() {
    let (fake, _watch, mut a) = leader().await;
    // It reads its own lease, and then another has written it.
    let stale = fake.stored("leases", "l").unwrap();
    let mut taken = stale.clone();
    taken["spec"]["holderIdentity"] = json!("another");
    fake.next(leases(Verb::Get).by("a"), [Answer::text(200, &stale.to_string())]);
    fake.put_json("leases", taken);
    a.hold().await;
    assert_eq!(holder(&fake, "l"), "another", "its write was refused");
    assert_eq!(fake.calls(leases(Verb::Update).by("a")).len(), 1);
    assert_eq!(fake.calls(leases(Verb::Get).by("a")).len(), 3, "one read shows the reason");
}

#[tokio::test]
async fn a_collision_with_a_write_that_keeps_the_holder_does_not_cost_the_lease() {
    let (fake, _watch, mut a) = leader().await;
    fake.next(
        leases(Verb::Update).by("a"),
        [Answer::status(409, "Conflict", "the object has been modified")],
    );
    let holding = tokio::spawn(async move { a.hold().await });
    fake.until_called(leases(Verb::Update).by("a"), 3).await;
    assert!(!holding.is_finished());
    assert_eq!(holder(&fake, "l"), "a");
}

#[tokio::test]
async fn a_lease_of_a_fraction_of_a_second_more_promises_the_next_whole_second() {
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let timings = Timings { duration: Duration::from_millis(2_100), ..TIMES };
    watch.replica(&fake, "l", "a", timings).lead().await;
    let stored = fake.stored("leases", "l").unwrap();
    assert_eq!(stored["spec"]["leaseDurationSeconds"], 3, "others must not come before our own deadline");
}

#[tokio::test]
async fn a_release_that_is_not_answered_does_not_delay_the_exit() {
    let (fake, _watch, mut a) = leader().await;
    fake.always(leases(Verb::Get).by("a"), Answer::NoHeaders);
    let since = Instant::now();
    within_patience("the release", a.elector.release()).await;
    // Less than the deadline of a read, 10 s.
    assert!(since.elapsed() < Duration::from_secs(1) + STALL, "{:?}", since.elapsed());
    assert!(!a.guard.may_write());
}

#[tokio::test]
async fn a_release_that_collides_with_a_last_renewal_is_tried_again() {
    let (fake, _watch, mut a) = leader().await;
    fake.next(
        leases(Verb::Update).by("a"),
        [Answer::status(409, "Conflict", "the object has been modified")],
    );
    within_patience("the release", a.elector.release()).await;
    assert_eq!(holder(&fake, "l"), "");
}

#[tokio::test]
async fn a_lease_that_cannot_be_read_or_written_at_first_is_won_later() {
    let fake = ScriptedApi::start().await;
    let error = || Answer::status(500, "InternalError", "etcdserver: no leader");
    fake.next(leases(Verb::Get), [error(), error()]);
    fake.next(leases(Verb::Create), [error()]);
    let watch = LeaseWatch::start(&fake, "l");
    watch.replica(&fake, "l", "a", TIMES).lead().await;
    assert_eq!(holder(&fake, "l"), "a");
}

#[tokio::test]
async fn a_renewal_counts_from_its_request_and_not_from_its_answer() {
    /// A standby comes soon after the deadline of the leader.
    const CLOSE: Timings = Timings {
        duration: Duration::from_secs(2),
        renew_deadline: Duration::from_millis(1_900),
        retry: Duration::from_millis(400),
    };
    let fake = ScriptedApi::start().await;
    let watch = LeaseWatch::start(&fake, "l");
    let [mut a, mut b] = ["a", "b"].map(|name| watch.replica(&fake, "l", name, CLOSE));
    a.lead().await;
    fake.next(leases(Verb::Get).by("a"), [Answer::Stored]);
    fake.next(leases(Verb::Update).by("a"), [Answer::Slow(Duration::from_millis(700))]);
    for verb in [Verb::Get, Verb::Update] {
        fake.always(leases(verb).by("a"), Answer::NoHeaders);
    }
    let guard = a.guard.clone();
    let holding = tokio::spawn(async move { a.hold().await });
    let standby = tokio::spawn(async move {
        b.lead().await;
        guard.may_write()
    });
    let both = within_patience("the new leader", standby).await.unwrap();
    assert!(!both, "two leaders at once");
    within_patience("the loss", holding).await.unwrap();
}

#[tokio::test]
async fn a_renewal_keeps_labels_annotations_and_owners_of_the_lease() {
    let (fake, _watch, mut a) = leader().await;
    let mut marked = fake.stored("leases", "l").unwrap();
    marked["metadata"]["labels"] = json!({"team": "ai"});
    marked["metadata"]["annotations"] = json!({"note": "kept"});
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "uid-owner"});
    marked["metadata"]["ownerReferences"] = json!([owner]);
    fake.put_json("leases", marked.clone());
    let holding = tokio::spawn(async move { a.hold().await });
    fake.until_called(leases(Verb::Update).by("a"), 1).await;
    holding.abort();
    let renewed = fake.stored("leases", "l").unwrap();
    for field in ["labels", "annotations", "ownerReferences"] {
        assert_eq!(renewed["metadata"][field], marked["metadata"][field], "{field}");
    }
}
