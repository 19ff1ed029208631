// Where unsent messages, and what was shown last, survive the end of the program.

import type { AnnouncementStore } from "./client.js";
import type { OutboxItem } from "./outbox.js";

/** Keeps the outbox of one user. Each message is kept by itself, so that two programs of a user do not undo each other's. */
export interface OutboxStore {
  /** All messages of a user, in no order. */
  load(userId: string): OutboxItem[];
  /** Writes a message, a former version of it included. */
  put(userId: string, item: OutboxItem): void;
  delete(userId: string, clientMessageId: string): void;
}

/** Keeps nothing beyond the life of the program. */
export const memoryStore: OutboxStore = { load: () => [], put: () => {}, delete: () => {} };

/** The part of localStorage that is used. */
export interface KeyValues {
  readonly length: number;
  key(index: number): string | null;
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/**
 * Keeps text messages in localStorage or the like. When it is full or switched
 * off, messages are kept in memory only, and nothing fails.
 */
export function webStore(storage: KeyValues, prefix = "imd.outbox"): OutboxStore {
  const key = (userId: string, id: string) => `${prefix}/${userId}/${id}`;
  return {
    load(userId) {
      const items: OutboxItem[] = [];
      for (let i = 0; i < storage.length; i++) {
        const name = storage.key(i);
        if (!name?.startsWith(key(userId, ""))) continue;
        const item = parse(storage.getItem(name));
        if (item) items.push(item);
      }
      return items;
    },
    put(userId, item) {
      if (item.content.data !== undefined) return;
      try {
        storage.setItem(key(userId, item.clientMessageId), JSON.stringify(item));
      } catch {
        // Full or forbidden: the message is sent all the same.
      }
    },
    delete(userId, id) {
      try {
        storage.removeItem(key(userId, id));
      } catch {
        // Forbidden: then it was never written.
      }
    },
  };
}

/** Keeps which announcement was shown last in localStorage or the like. */
export function webAnnouncements(storage: KeyValues, prefix = "imd.announced"): AnnouncementStore {
  return {
    load(userId) {
      try {
        const kept = JSON.parse(storage.getItem(`${prefix}/${userId}`) ?? "") as { seq: number; epoch: string };
        return Number.isSafeInteger(kept.seq) && typeof kept.epoch === "string" ? kept : { seq: 0, epoch: "" };
      } catch {
        return { seq: 0, epoch: "" };
      }
    },
    save(userId, cursor) {
      try {
        storage.setItem(`${prefix}/${userId}`, JSON.stringify(cursor));
      } catch {
        // Full or forbidden: it may be shown once more after the page was loaded again.
      }
    },
  };
}

function parse(text: string | null): OutboxItem | undefined {
  try {
    const item = JSON.parse(text ?? "") as OutboxItem;
    return item.clientMessageId && item.conversation && item.content ? item : undefined;
  } catch {
    return undefined;
  }
}
