//! The four scenes. They differ in the guard and in the payment, and in nothing else.

use crate::said::Outcome;

/// What an invoice is about.
pub(crate) const CENTS: i64 = 9_000;
/// What somebody asks for afterwards under the same key.
pub(crate) const OTHER_CENTS: i64 = 8_000;

/// Whether and how a worker asks the API for money, before it writes the bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payment {
    None,
    WithoutKey,
    WithKey,
}

/// One scene.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) number: u8,
    pub(crate) title: &'static str,
    pub(crate) subtitle: &'static str,
    pub(crate) guarded: bool,
    pub(crate) payment: Payment,
    pub(crate) protected: &'static str,
    bills: i64,
    charges: i64,
}

pub(crate) const SCENES: [Scene; 4] = [
    Scene {
        number: 1,
        title: "WITHOUT THE GUARD",
        subtitle: "The workers rely on the lease alone.",
        guarded: false,
        payment: Payment::WithoutKey,
        protected: "nothing: the lease ended, the worker did not",
        bills: 2,
        charges: 2,
    },
    Scene {
        number: 2,
        title: "WITH THE GUARD",
        subtitle: "The token is checked in the transaction that writes the bill. Nothing is paid here.",
        guarded: true,
        payment: Payment::None,
        protected: "the guard in A's own transaction",
        bills: 1,
        charges: 0,
    },
    Scene {
        number: 3,
        title: "THE GUARD, AND A PAYMENT WITHOUT A KEY",
        subtitle: "The same, and the customer's money is asked for before the bill is written.",
        guarded: true,
        payment: Payment::WithoutKey,
        protected: "the bill: the guard · the customer: nothing, a fence does not reach an external API",
        bills: 1,
        charges: 2,
    },
    Scene {
        number: 4,
        title: "THE GUARD AND AN IDEMPOTENCY KEY",
        subtitle: "The same, with a key made of resource and operation, without a token: each worker has the same one.",
        guarded: true,
        payment: Payment::WithKey,
        protected: "the bill: the guard · the customer: the key, first one wins, which is not fencing",
        bills: 1,
        charges: 1,
    },
];

/// What PostgreSQL and the API have for one invoice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) bills: i64,
    pub(crate) billed: i64,
    pub(crate) charges: i64,
    pub(crate) charged: i64,
}

/// What a worker was seen to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Deeds {
    pub(crate) token: Option<u64>,
    pub(crate) receipt: Option<i64>,
    /// Whether its lease was lost by the time it was done.
    pub(crate) late: bool,
    pub(crate) outcome: Option<Outcome>,
}

/// What was seen of a scene.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) a: Deeds,
    pub(crate) b: Deeds,
    /// The state of A's process in `/proc`, after the stop and before it was resumed.
    pub(crate) states: [Option<char>; 2],
    /// The status of the API's answer to another amount under the same key.
    pub(crate) conflict: Option<u16>,
    pub(crate) books: Count,
}

impl Scene {
    /// Whether it showed what it says.
    pub(crate) fn judge(&self, seen: &Seen) -> Result<(), String> {
        let expect = |holds: bool, what: &str| if holds { Ok(()) } else { Err(format!("{what}; seen: {seen:?}")) };
        expect(seen.states == [Some('T'); 2], "A should have been stopped (T) until B was done")?;
        expect(seen.a.token.is_some() && seen.a.token < seen.b.token, "B's token should be above A's")?;
        expect(seen.a.late, "A should have been stopped past its TTL")?;
        expect(seen.b.outcome == Some(Outcome::Billed), "B should have written its bill")?;
        let of_a = if self.guarded { Outcome::Refused } else { Outcome::Billed };
        expect(seen.a.outcome == Some(of_a), &format!("A's stale bill should have been {of_a:?}"))?;
        let books = Count {
            bills: self.bills,
            billed: self.bills.saturating_mul(CENTS),
            charges: self.charges,
            charged: self.charges.saturating_mul(CENTS),
        };
        expect(seen.books == books, &format!("in the books there should be {books:?}"))?;
        let receipts = (seen.a.receipt, seen.b.receipt);
        match self.payment {
            Payment::None => expect(receipts == (None, None), "nobody should have paid"),
            Payment::WithoutKey => expect(
                receipts.0.is_some() && receipts.1.is_some() && receipts.0 != receipts.1,
                "each worker should have a receipt of its own",
            ),
            Payment::WithKey => {
                expect(receipts.0.is_some() && receipts.0 == receipts.1, "B should have been given A's receipt")?;
                expect(seen.conflict == Some(409), "another amount under the same key should be a conflict (409)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good(scene: &Scene) -> Seen {
        let receipts = match scene.payment {
            Payment::None => (None, None),
            Payment::WithoutKey => (Some(1), Some(2)),
            Payment::WithKey => (Some(1), Some(1)),
        };
        let of_a = if scene.guarded { Outcome::Refused } else { Outcome::Billed };
        let (bills, charges) = (scene.bills, scene.charges);
        Seen {
            a: Deeds { token: Some(5), receipt: receipts.0, late: true, outcome: Some(of_a) },
            b: Deeds { token: Some(6), receipt: receipts.1, late: false, outcome: Some(Outcome::Billed) },
            states: [Some('T'); 2],
            conflict: (scene.payment == Payment::WithKey).then_some(409),
            books: Count {
                bills,
                billed: bills.saturating_mul(CENTS),
                charges,
                charged: charges.saturating_mul(CENTS),
            },
        }
    }

    type Break = (&'static str, fn(&mut Seen));

    #[test]
    fn whatever_a_scene_does_not_show_is_found() {
        let broken: [Break; 13] = [
            ("A was not stopped", |seen| seen.states[0] = Some('S')),
            ("A was not stopped for long enough", |seen| seen.states[1] = Some('S')),
            ("A's process is gone", |seen| seen.states[1] = None),
            ("A's lease is good", |seen| seen.a.late = false),
            ("B's token is not above A's", |seen| seen.b.token = seen.a.token),
            ("A has no token", |seen| seen.a.token = None),
            ("A's bill ends in the other way", |seen| {
                let other = if seen.a.outcome == Some(Outcome::Billed) { Outcome::Refused } else { Outcome::Billed };
                seen.a.outcome = Some(other);
            }),
            ("B is refused", |seen| seen.b.outcome = Some(Outcome::Refused)),
            ("a bill more", |seen| seen.books.bills += 1),
            ("another sum of bills", |seen| seen.books.billed += 1),
            ("a charge more", |seen| seen.books.charges += 1),
            ("another sum of charges", |seen| seen.books.charged += 1),
            ("B has the wrong receipt", |seen| {
                seen.b.receipt = if seen.b.receipt == seen.a.receipt { Some(9) } else { seen.a.receipt };
            }),
        ];
        for scene in &SCENES {
            assert_eq!(scene.judge(&good(scene)), Ok(()));
            for (what, break_it) in broken {
                let mut seen = good(scene);
                break_it(&mut seen);
                assert!(scene.judge(&seen).is_err(), "scene {}: {what}", scene.number);
            }
        }
        let taken = Seen { conflict: Some(201), ..good(&SCENES[3]) };
        assert!(SCENES[3].judge(&taken).is_err(), "the API takes another amount under the same key");
    }
}
