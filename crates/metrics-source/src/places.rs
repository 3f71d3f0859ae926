//! A bounded number of places for clients that no certificate names. A client that comes when all are taken gets the
//! place of the oldest one of the address that has the most, so that idle clients keep no other client out.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// A clone is the same set of places.
#[derive(Clone)]
pub(crate) struct Places(Arc<Shared>);

struct Shared {
    most: usize,
    /// Oldest first.
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    next: u64,
    places: VecDeque<Entry>,
}

struct Entry {
    number: u64,
    address: Option<IpAddr>,
    lost: CancellationToken,
}

/// It is free again when it is dropped.
pub(crate) struct Place {
    places: Places,
    number: u64,
    /// Cancelled when the place is given to another client.
    pub(crate) lost: CancellationToken,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Shared { most, taken: Mutex::default() }))
    }

    pub(crate) fn take(&self, address: Option<IpAddr>) -> Place {
        let lost = CancellationToken::new();
        let mut taken = self.lock();
        if taken.places.len() >= self.0.most
            && let Some(index) = first_to_go(&taken.places)
            && let Some(evicted) = taken.places.remove(index)
        {
            evicted.lost.cancel();
        }
        let number = taken.next;
        taken.next += 1;
        taken.places.push_back(Entry { number, address, lost: lost.clone() });
        Place { places: self.clone(), number, lost }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().places.retain(|entry| entry.number != self.number);
    }
}

/// The oldest of the address that has the most; of several, the oldest of all.
fn first_to_go(places: &VecDeque<Entry>) -> Option<usize> {
    let count = |entry: &Entry| places.iter().filter(|other| other.address == entry.address).count();
    let most = places.iter().map(count).max()?;
    places.iter().position(|entry| count(entry) == most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_address_with_the_most_places_makes_room() {
        let places = Places::new(3);
        let address = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let controller = places.take(address(1));
        let mut idle: Vec<Place> = (0..3).map(|_| places.take(address(2))).collect();
        let lost: Vec<bool> = idle.iter().map(|place| place.lost.is_cancelled()).collect();
        assert_eq!((controller.lost.is_cancelled(), lost), (false, vec![true, false, false]));
        // A place that was lost is not another one's.
        idle.remove(0);
        assert_eq!(places.lock().places.len(), 3);
        drop(idle);
        drop(controller);
        assert!(places.lock().places.is_empty());
    }
}
